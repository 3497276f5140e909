// Files of format version 1, as they were written when it was new: they stay readable for ever.
#include <catch2/catch.hpp>
#include <cmath>

#include "io/side_files.hpp"
#include "io/trace_reader.hpp"
#include "run/study/study.hpp"
#include "tests/support/paths.hpp"
#include "tests/support/study_case.hpp"

using namespace kvsim;
using namespace kvsim::test;

namespace {

std::string fixture(const char* name) {
  return std::string(kSourceDir) + "/tests/fixtures/" + name;
}

}  // namespace

TEST_CASE("a trace of version 1 is read as it was", "[io][fixtures]") {
  const TraceReader reader(fixture("trace-v1.h5"));
  const TraceInfo& info = reader.info();
  CHECK(info.model == "synthetic");
  CHECK(info.prompt_len == 24);
  CHECK(info.total_len == 32);
  CHECK(info.num_query_heads == 4);
  CHECK(info.num_kv_heads == 2);
  CHECK(info.layers == std::vector<int>{0, 1});
  REQUIRE(info.spans.size() == 2);
  CHECK(info.spans[0].name == "defense");
  CHECK(info.probes.size() == 1);
  CHECK(reader.header(1).sliding_window == 0);
  CHECK(reader.header(0).softcap == 30);
  CHECK(reader.header(0).has_sink);
  CHECK(reader.digest() == "xxh3-128:df39bd897950bdd6878d6ca4ff28bd84");
  const LayerTrace layer = reader.read_layer(1, true);
  std::vector<float> row(8);
  layer.k.read(1, 5, 6, row.data());
  CHECK(row[3] == -0.382568359375f);
  CHECK(reader.token_text()[5] == "t5 ");
}

TEST_CASE("results of version 1 are read as they were, and replaying their trace gives them again",
          "[io][fixtures]") {
  const Dataset old = read_known_results(fixture("results-v1.nc"));
  CHECK(std::get<std::string>(*old.attribute("kvsim_version")) == "0.1.0");
  CHECK(std::get<int64_t>(*old.attribute(kResultsVersionAttribute)) == 1);
  const TraceReader reader(fixture("trace-v1.h5"));
  CHECK(std::get<std::string>(*old.attribute("trace_digest")) == reader.digest());
  using Texts = std::vector<std::string>;
  StudyOptions options = options_for(std::get<Texts>(old.at("policy").values),
                                     std::get<Texts>(old.at("budget_label").values), {0, 1});
  options.wo_steps.reset();
  options.save_keep = true;
  options.metrics = {"drift"};
  const Dataset now = study_of(reader, options);
  int compared = 0;
  for (const Variable& variable : old.variables()) {
    INFO(variable.name);
    const Variable* found = now.find(variable.name);
    REQUIRE(found != nullptr);
    CHECK(found->dims == variable.dims);
    REQUIRE(found->type() == variable.type());
    const auto* x = std::get_if<std::vector<double>>(&variable.values);
    if (x == nullptr) {
      CHECK(found->values == variable.values);
      continue;
    }
    const auto& y = std::get<std::vector<double>>(found->values);
    for (size_t i = 0; i < x->size(); ++i) {
      // Another instruction set may have written them.
      CHECK(((std::isnan((*x)[i]) && std::isnan(y[i])) || y[i] == Approx((*x)[i]).epsilon(1e-4)));
      ++compared;
    }
  }
  CHECK(compared > 500);
}

TEST_CASE("results of a later version are refused by the name of their program", "[io][fixtures]") {
  const TemporaryFolder folder;
  write_bytes(folder / "later.nc", read_bytes(fixture("results-v1.nc")));
  Editor(folder / "later.nc").integer("/", kResultsVersionAttribute, 2);
  const Thrown thrown = error_of([&] { read_known_results(folder / "later.nc"); });
  CHECK(thrown.fault == Fault::bad_data);
  CHECK_THAT(thrown.message, Catch::Contains("found version 2, of kvsim 0.1.0"));
  CHECK(run_kvsim("explain " + (folder / "later.nc")).status == 3);
  CHECK(run_kvsim("plot " + (folder / "later.nc") + " -o " + (folder / "figs")).status == 3);
}

TEST_CASE("results whose variables are not what they are declared to be are refused",
          "[io][fixtures]") {
  const TemporaryFolder folder;
  Dataset results = read_known_results(fixture("results-v1.nc"));
  SECTION("another type") {
    results.at("layer").values = std::vector<int64_t>{0, 1};
    write_results(results, folder / "bad.nc");
    CHECK_THAT(error_of([&] { read_known_results(folder / "bad.nc"); }).message,
               Catch::Contains("layer: wrong form: found int64 over [layer], expected int32"));
  }
  SECTION("no program") {
    Editor editor(
        (write_bytes(folder / "bad.nc", read_bytes(fixture("results-v1.nc"))), folder / "bad.nc"));
    editor.remove_attribute("/", "kvsim_version");
    CHECK_THAT(error_of([&] { read_known_results(folder / "bad.nc"); }).message,
               Catch::Contains("not a results file"));
  }
}
