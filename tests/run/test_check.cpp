#include <catch2/catch.hpp>

#include "run/check/check_layer.hpp"
#include "tests/reference/reference.hpp"
#include "tests/sim/backend/backends.hpp"
#include "tests/support/study_case.hpp"

using namespace kvsim;
using namespace kvsim::test;

TEST_CASE("the plain form of a layer is the reference of the tests", "[run][check]") {
  const auto trace = random_trace({.softcap = 3, .sink = true});
  const int64_t n = trace->info.prompt_len;
  PlainSets sets(4, std::vector<bool>(static_cast<size_t>(n)));
  for (size_t h = 0; h < 4; ++h)
    for (size_t i = 0; i < sets[h].size(); ++i) sets[h][i] = (i * 7 + h / 2) % 3 == 0;
  const int64_t row = n + 4;
  const PlainMeasures plain = PlainLayer(trace->layer, {row}, false).measure(sets)[0];
  double all = 0, kept = 0;
  std::vector<double> whole(24), changed(24);
  for (int h = 0; h < 4; ++h) {
    const auto logits = reference::logits(trace->layer, h, row);
    const auto full = reference::attention(trace->layer, h, logits).weight;
    std::vector<bool> present(logits.size(), true);
    for (int64_t i = 0; i < n; ++i) {
      const auto at = static_cast<size_t>(i);
      present[at] = sets[static_cast<size_t>(h)][at];
      const double importance = full[at] *
                                reference::l1(reference::project(
                                    trace->layer, h, reference::value(trace->layer, h, i)));
      all += importance;
      if (present[at]) kept += importance;
    }
    const auto left = reference::attention(trace->layer, h, logits, present).weight;
    const auto z = reference::project(trace->layer, h, reference::output(trace->layer, h, full));
    const auto moved = reference::project(trace->layer, h,
                                          reference::output(trace->layer, h, left));
    for (size_t c = 0; c < z.size(); ++c) {
      whole[c] += z[c];
      changed[c] += moved[c] - z[c];
    }
  }
  CHECK(plain.retained_importance == Approx(kept / all).epsilon(1e-12));
  CHECK(plain.output_error == Approx(reference::l2(changed) / reference::l2(whole)).epsilon(1e-10));
}

TEST_CASE("a run agrees with plain code and with other instruction sets, and a wrong one does not",
          "[run][check]") {
  RandomTraceShape shape;
  const std::vector<std::string> records = {"snapkv,window=8", "h2o", "keepkv,window=8"};
  const StudyCase study(shape, {}, records, [](StudyOptions& o) { o.wo_steps = 0; });
  const auto backend = make_cpu_backend();
  const ForcedIsa forced("portable");
  const auto other = make_cpu_backend();
  const StudyOptions options = options_for(records, {"0.5"}, {0});
  const LayerCheckResult found = check_run(study.reader(), options, study.results(), 0, *backend,
                                           *other);
  REQUIRE(found.plain.size() == 3);
  for (const CheckedVariable& one : found.plain) {
    INFO(one.name);
    CHECK(one.values > 0);
    CHECK(one.difference <= kPlainLimit);
  }
  CHECK(found.left_out == std::vector<std::string>{"keepkv,window=8"});
  CHECK(found.kept > 0);
  CHECK(found.other.size() > 3);

  Dataset wrong = study.results();
  std::get<std::vector<double>>(wrong.at("output_error").values)[3] += 1e-3;
  const Thrown thrown = error_of(
      [&] { check_run(study.reader(), options, wrong, 0, *backend, *other); });
  CHECK(thrown.fault == Fault::verification);
  CHECK_THAT(thrown.message, Catch::Contains("output_error of layer 0"));
}

TEST_CASE("replay --check names a layer and the largest differences", "[run][check][cli]") {
  const SynthFolder made({.prompt = 48, .steps = 8, .head_dim = 8, .value_dim = 8, .hidden = 12});
  const Outcome outcome = run_kvsim(
      "replay " + (made.folder / "t.h5") +
      " --policy snapkv --policy keepkv --budget 0.5 --threads 1 --check -o " +
      (made.folder / "t.nc"));
  CHECK(outcome.status == 0);
  CHECK_THAT(outcome.out, Catch::Contains("check of layer "));
  CHECK_THAT(outcome.out, Catch::Contains("plain float64"));
  CHECK_THAT(outcome.out, Catch::Contains("keepkv"));
  CHECK_THAT(outcome.out, Catch::Contains("kept entries are others"));
}
