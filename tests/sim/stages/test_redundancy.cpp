// What other entries say, too (policies.md 5.6): by hand, and the naive form that random records of
// all stages are compared with.
#include <catch2/catch.hpp>
#include <cmath>

#include "sim/stages/stages.hpp"
#include "tests/reference/decoding.hpp"
#include "tests/reference/kinds.hpp"
#include "tests/support/small_run.hpp"

namespace kvsim::reference {
namespace {

double mixed(const Settings& s, double score, double redundancy) {
  const double share = s.real("redundancy_mix");
  return (share > 0 ? share * score : 0) - (1 - share) * redundancy;
}

const References<RedundancyReference> redundancies{
    {"none", {}},
    {"key-cosine",
     {[](const Settings& s, const std::vector<Row>& keys) {
  return key_redundancy(keys, s.real("redundancy_threshold"));
      },
      mixed}},
    {"key-cosine-scaled",
     {[](const Settings& s, const std::vector<Row>& keys) {
  return key_redundancy(keys, s.real("redundancy_threshold"), true);
      },
      mixed, true}},
    };
const References<MemoryReference> memories{{"none", {}}, {"decayed-max", {true}}};

/// Keys east, east, north and between: cosines 1, 0 and the root of a half. Row 1 leaves out the
/// newest that is like it, entry 3; row 2 has entry 3 alone; row 3 leaves out entry 2.
TEST_CASE("R-KV's redundancy of four keys by hand", "[stages]") {
  const double half = std::sqrt(0.5);
  const std::vector<float> keys = {1, 0, 2, 0, 0, 3, 1, 1};
  const auto found = Kinds<Redundancy>::find("key-cosine")
                         .of_keys(test::settings_with("redundancy=key-cosine"), keys, 2);
  // rows: 0: [0 1 0 -], 1: [1 0 0 -], 2: [0 0 0 -], 3: [h h - 0]
  const std::vector<double> mean = {(1 + half) / 4, (1 + half) / 4, 0, 0};
  double sum = 0;
  for (const double x : mean) sum += std::exp(x);
  for (size_t i = 0; i < mean.size(); ++i)
    CHECK(found[i] == Approx(std::exp(mean[i]) / sum).margin(1e-7));
}

TEST_CASE("G-KV's redundancy of keys that are alike in nothing leaves out none", "[stages]") {
  const std::vector<float> keys = {1, 0, 0, 1, 1, 1, 0, -1};  // the last is like no other
  const Settings settings = test::settings_with("redundancy=key-cosine-scaled");
  const auto& kind = Kinds<Redundancy>::find("key-cosine-scaled");
  auto found = kind.of_keys(settings, keys, 2);
  const double half = std::sqrt(0.5);
  // rows: 0: [0 0 - 0], 1: [0 0 - -1], 2: [h - 0 -h], 3: [0 -1 -h 0]
  const std::vector<double> mean = {half / 4, -0.25, -half / 4, (-1 - half) / 4};
  double sum = 0;
  for (const double x : mean) sum += std::exp(x);
  for (size_t i = 0; i < mean.size(); ++i)
    CHECK(found[i] == Approx(std::exp(mean[i]) / sum).margin(1e-7));
  kind.level(found);
  CHECK(found[0] == 1);
  CHECK(found[3] == Approx(std::exp(mean[3] - mean[0])));
}

TEST_CASE("G-KV's memory: the larger of now and of before, decayed", "[stages]") {
  const auto& kind = Kinds<Memory>::find("decayed-max");
  std::vector<double> scores = {1, 4, 2};
  kind.level(scores);
  CHECK(scores == std::vector<double>{0.25, 1, 0.5});
  const Settings settings = test::settings_with("memory=decayed-max,memory_decay=0.5");
  CHECK(kind.join(settings, 0.8, 0.25) == Approx(0.4));
  CHECK(kind.join(settings, 0.8, 0.5) == 0.5);
  std::vector<double> nothing = {0, 0};  // no attention on any: stays
  kind.level(nothing);
  CHECK(nothing == std::vector<double>{0, 0});
}

}  // namespace
}  // namespace kvsim::reference
