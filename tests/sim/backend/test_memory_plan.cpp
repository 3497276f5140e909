#include <fmt/format.h>

#include <catch2/catch.hpp>

#include "sim/backend/cuda/memory_plan.hpp"
#include "sim/core/prelude.hpp"
#include "tests/support/paths.hpp"

namespace kvsim::test {
namespace {

using namespace kvsim::cuda;

constexpr int64_t kGiB = int64_t{1} << 30;

// bench/run.sh --only long: one layer of an 8B model in bfloat16, 8 policies at 10 budgets, outputs
// of all sets; a chain of 10 sets has 11 states, later positions and everything two more.
constexpr int64_t kPrompt = 131072, kSteps = 512, kHeads = 32, kKvHeads = 8, kSize = 128;
constexpr int64_t kAll = kPrompt + kSteps, kKeyBytes = kKvHeads * 2 * kSize * 2;
constexpr ReplayCounts kReplay{.heads = kHeads,
                               .value_size = kSize,
                               .columns = kSize,
                               .column_blocks = 1,
                               .sets = 80,
                               .output_sets = 80,
                               .slots = 90,
                               .output_slots = 90};

struct Plan {
  int64_t keys, rows, steps;
  double keys_gib, rows_gib, replay_gib;
  double total() const { return keys_gib + rows_gib + replay_gib; }
};

double gib(int64_t bytes) { return static_cast<double>(bytes) / static_cast<double>(kGiB); }

Plan plan(int64_t memory) {
  const int64_t keys = keys_together(memory, kKeyBytes, kAll), rows = rows_together(memory, kAll);
  const int64_t steps = steps_together(memory, kReplay, kSteps);
  return {keys,
          rows,
          steps,
          2 * gib(keys * kKeyBytes),
          gib(rows * row_bytes(kAll)),
          gib(steps * step_bytes(kReplay))};
}

}  // namespace

TEST_CASE("parts of a layer fit their shares of the device", "[backend]") {
  for (const int64_t memory : {kGiB / 2, 2 * kGiB, 8 * kGiB, 24 * kGiB, 80 * kGiB})
    for (const int64_t keys : {int64_t{431}, kAll, 8 * kAll}) {
      const int64_t together = keys_together(memory, kKeyBytes, keys);
      CHECK(together * kKeyBytes <= layer_share(memory));
      CHECK((together == keys || (together + 1) * kKeyBytes > layer_share(memory)));
      const int64_t rows = rows_together(memory, keys);
      CHECK(rows * row_bytes(keys) <= rows_share(memory));
      CHECK((rows == kMostRows || (rows + 1) * row_bytes(keys) > rows_share(memory)));
      const int64_t steps = steps_together(memory, kReplay, kSteps);
      CHECK(steps * step_bytes(kReplay) <= replay_share(memory));
      const int64_t blocks = (kSteps + steps - 1) / steps;  // no more of them than needed
      CHECK((blocks == 1 || kSteps > (blocks - 1) * (replay_share(memory) / step_bytes(kReplay))));
    }
  CHECK(keys_together(1, kKeyBytes, 10) == 1);  // one at least, whatever there is
  CHECK(rows_together(1, 10) == 1);
  CHECK(steps_together(1, kReplay, 10) == 1);
}

TEST_CASE("the plan for three devices is the one that docs/speed.md shows", "[backend]") {
  std::ifstream file(std::string(kSourceDir) + "/docs/speed.md");
  std::stringstream page;
  page << file.rdbuf();
  for (const int64_t device : {8, 24, 80}) {
    const Plan found = plan(device * kGiB);
    const std::string row = fmt::format(
        "| {} | {} | {:.2f} | {} | {:.2f} | {} | {:.2f} | {:.1f} |", device,
        found.keys == kAll ? "all" : std::to_string(found.keys), found.keys_gib, found.rows,
        found.rows_gib, found.steps, found.replay_gib, found.total());
    INFO(row);
    CHECK(page.str().find(row) != std::string::npos);
    CHECK(found.total() < static_cast<double>(device));
    CHECK(found.total() < 20 / 1.073741824);  // 20 GB, the bar of a long sweep
  }
}

}  // namespace kvsim::test
