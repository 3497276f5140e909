// Queries of a probe (policies.md 5.1, 5.2 and 5.4), computed on paper.
#include <catch2/catch.hpp>
#include <cmath>

#include "sim/core/error.hpp"
#include "tests/support/near.hpp"
#include "tests/support/small_run.hpp"

namespace kvsim {
namespace {

using test::near;

/// n = 4, one head. Three tokens in parts of two and one, which read two entries each; their own
/// keys are 0, so that each counts with weight 1.
std::unique_ptr<test::RandomRun> probed() {
  test::SmallRun small;
  small.weights = {{{1, 2, 4, 1}}};
  auto run = small.build();
  ProbeInfo probe;
  probe.name = "repeat";
  probe.position = {4, 5, 4};
  probe.parts = {{{0, 2}, {0, 2}}, {{2, 3}, {2, 4}}};
  probe.has_keys = probe.has_residual_norm = true;
  ProbeLayer layer;
  layer.q = Tensor(ElementType::float32, {1, 3, 5});
  layer.k = Tensor(ElementType::float32, {1, 3, 5});
  layer.v = Tensor(ElementType::float32, {1, 3, 1});
  const double weights[3][4] = {{1, 2, 4, 8}, {6, 1, 1, 6}, {1, 8, 4, 2}};
  for (int64_t t = 0; t < 3; ++t) {
    for (int64_t i = 0; i < 5; ++i) {
      test::set_element(layer.q, 0, t, i, i < 4 ? static_cast<float>(std::log(weights[t][i])) : 0);
      test::set_element(layer.k, 0, t, i, 0);
    }
    test::set_element(layer.v, 0, t, 0, 1);
  }
  layer.residual_norm = {1, 2, 4};
  run->info.probes = {probe};
  run->layers[0].probes = {layer};
  return run;
}

std::vector<double> scores(const std::string& changes) {
  const auto run = probed();
  return test::score_row(*run, "snapkv,smooth=none,aggregate=max,group=max," + changes, "2");
}

TEST_CASE("a probe's tokens see the prompt and their own part up to themselves", "[stages]") {
  // Sums of weights: 15 + 1, 14 + 2 and 15 + 1, so that A = w / 16; the largest of the three.
  CHECK_THAT(scores("queries=probe"), near({6.0 / 16, 8.0 / 16, 4.0 / 16, 8.0 / 16}));
  // One of three: the last.
  CHECK_THAT(scores("queries=probe,probe_queries=1"),
             near({1.0 / 16, 8.0 / 16, 4.0 / 16, 2.0 / 16}));
}

TEST_CASE("reread is the softmax over sinks, what is read again, and the part itself", "[stages]") {
  // KVzip 3.2, one sink. Tokens 0 and 1 read entries 0 and 1, where no sink stands before them:
  // (1, 2) / (3 + 1) and (6, 1) / (7 + 2). Token 2: (4, 2) / (sink 1 + 6 + 1).
  CHECK_THAT(scores("queries=probe,indicator=reread,sinks=1"),
             near({6.0 / 9, 2.0 / 4, 4.0 / 8, 2.0 / 8}));
  // KVzip+: times |v W| = 1 over the norm of the residual stream, 1, 2 and 4.
  CHECK_THAT(scores("queries=probe,indicator=reread,sinks=1,reread_norm=residual"),
             near({3.0 / 9, 2.0 / 4, 1.0 / 8, 0.5 / 8}));
}

TEST_CASE("a probe beside the prompt's queries: each set is aggregated, then both are joined",
          "[stages]") {
  // The newest query: (1, 2, 4) / 8. The probe: (6, 8, 4) / 16.
  CHECK_THAT(scores("window=1,join=max"), near({0.375, 0.5, 0.5}));
  CHECK_THAT(scores("window=1,join=power-mean,power=1"), near({0.25, 0.375, 0.375}));
  CHECK_THAT(
      scores("window=1,join=power-mean,power=2"),
      near({std::sqrt((0.125 * 0.125 + 0.375 * 0.375) / 2),
            std::sqrt((0.25 * 0.25 + 0.5 * 0.5) / 2), std::sqrt((0.5 * 0.5 + 0.25 * 0.25) / 2)}));
}

TEST_CASE("a probe that the trace does not hold is refused with those it holds", "[stages]") {
  const auto run = probed();
  CHECK_THROWS_WITH(test::kept_of(*run, {"kvzip,probe=other"}, {"2"}),
                    Catch::Contains("found probes repeat, expected a probe other"));
  CHECK_THROWS_WITH(test::kept_of(*run, {"kvzip-plus,reread_norm=input"}, {"0.5"}),
                    Catch::Contains("no input_norm"));
}

TEST_CASE("what a trace lacks for all records is named as options of one capture", "[stages]") {
  const auto run = probed();
  CHECK_THROWS_WITH(
      test::kept_of(*run,
                    {"kvgrad", "speckv", "kvzip-plus,reread_norm=input", "kvzip,probe=question2"},
                    {"2"}),
      Catch::Contains("with --probe draft:K --probe file:QUESTIONS --probe repeat:gradient"));
}

}  // namespace
}  // namespace kvsim
