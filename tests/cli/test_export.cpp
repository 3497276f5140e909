#include <algorithm>
#include <catch2/catch.hpp>

#include "io/hdf5.hpp"
#include "io/results_reader.hpp"
#include "io/trace_reader.hpp"
#include "tests/io/trace_fixture.hpp"

using namespace kvsim;
using namespace kvsim::test;

namespace {

/// A synthetic trace and a replay that saves its sets, per KV head and per query head.
struct Replayed : Synthesized {
  explicit Replayed(const std::string& policies, const std::string& more = "--save-keep")
      : Synthesized("--dtype float32") {
    REQUIRE(replay(policies + " --budget 0.2,30 -q " + more).status == 0);
  }
  Outcome run(const std::string& arguments) const {
    return run_kvsim("export " + results + " -o " + kept + " --overwrite " + arguments);
  }
  const std::string kept = folder / "kept.h5";
};

void check_exported(const Replayed& made, const std::string& choice, int64_t policy,
                    const char* mask, const char* granularity) {
  const Outcome outcome = made.run(choice);
  INFO(outcome.err);
  REQUIRE(outcome.status == 0);
  const h5::InputFile file(made.kept, "kept sets");
  CHECK(file.text_attribute("/", "format") == "kvsim-kept");
  CHECK(file.integer_attribute("/", "version") == 1);
  CHECK(file.text_attribute("/", "granularity") == granularity);
  CHECK(file.text_attribute("/", "budget") == "30");
  CHECK(file.real_attribute("/", "budget_ratio") == 0.5);
  CHECK(file.integer_attribute("/", "prompt_len") == 60);
  const TraceReader reader(made.trace);
  CHECK(file.text_attribute("/", "trace_digest") == reader.digest());
  const Dataset results = read_results(made.results);
  CHECK(file.children("layers").size() == static_cast<size_t>(results.size("layer")));
  for (int64_t layer = 0; layer < results.size("layer"); ++layer) {
    const auto dataset = file.dataset("layers/" + std::to_string(layer) + "/kept");
    CHECK(dataset.shape() == h5::Shape{results.size(results.at(mask).dims[3]), 60});
    const std::vector<int64_t> found = dataset.read_integers();
    const auto wanted = results.row<uint8_t>(mask, {policy, 1, layer});
    CHECK(std::equal(found.begin(), found.end(), wanted.begin(), wanted.end()));
    CHECK(std::count(found.begin(), found.end(), 1) == 30 * dataset.shape()[0]);
  }
}

}  // namespace

TEST_CASE("export writes the kept sets of one policy and budget", "[cli]") {
  const Replayed made("--policy snapkv,window=8 --policy snapkv:official,window=8");
  check_exported(made, "--policy snapkv,window=8 --budget 30", 0, "kept_mask", "kv");
  check_exported(made, "--policy snapkv:official,window=8 --budget 30", 1, "kept_mask_query",
                 "query");
}

TEST_CASE("export refuses what is not a set, and asks where there is a choice", "[cli]") {
  const Replayed made("--policy streaming --policy keepkv,window=8 --policy oracle-step");
  check_refused(made.run("--budget 30"), 2, "which policy?");
  check_refused(made.run("--policy streaming"), 2, "which budget?");
  check_refused(made.run("--policy h2o --budget 30"), 3, "do not have this policy");
  check_refused(made.run("--policy keepkv,window=8 --budget 30"), 3, "merge=keepkv");
  check_refused(made.run("--policy oracle-step --budget 30"), 3, "schedule=per-step");
  check_refused(made.run("--policy streaming --budget 30 --trace data/sample.h5"), 3,
                "not the trace of these results");
  const Replayed without("--policy streaming", "");
  check_refused(without.run("--budget 30"), 3, "--save-keep");
  check_refused(run_kvsim("export " + made.results + " -o " + made.results + " --overwrite"), 2,
                made.results);
}
