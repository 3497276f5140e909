// What other entries say, too (policies.md 5.6): by hand, and the naive form that random records of
// all stages are compared with.
#include <catch2/catch.hpp>
#include <cmath>

#include "sim/stages/redundancy/redundancy.hpp"
#include "tests/reference/decoding.hpp"
#include "tests/reference/kinds.hpp"
#include "tests/support/small_run.hpp"

namespace kvsim::reference {
namespace {

const References<RedundancyReference> redundancies{
    {"none", {}},
    {"key-cosine",
     {[](const Settings& s, const std::vector<Row>& keys) {
  return key_redundancy(keys, s.real("redundancy_threshold"));
      },
      [](const Settings& s, double score, double redundancy) {
  const double share = s.real("redundancy_mix");
  return (share > 0 ? share * score : 0) - (1 - share) * redundancy;
     }}},
    };

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

}  // namespace
}  // namespace kvsim::reference
