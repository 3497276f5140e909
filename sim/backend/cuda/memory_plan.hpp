#pragma once
// Shares of the device's memory, and so in how many parts a layer is worked on.
#include <algorithm>
#include <cstdint>

namespace kvsim::cuda {

// Shares of the memory that is free when a run starts. The rest is for W_O, queries and what is
// small.
constexpr int64_t layer_share(int64_t memory) { return memory / 4; }  ///< K and V; of two layers
constexpr int64_t replay_share(int64_t memory) { return memory / 4; }
constexpr int64_t rows_share(int64_t memory) { return memory / 8; }  ///< rows of attention
/// One table of intermediate products.
constexpr int64_t product_share(int64_t memory) {
  return std::min(int64_t{256} << 20, memory / 32);
}

/// Keys, with their values, of a layer that are on the device together.
constexpr int64_t keys_together(int64_t memory, int64_t bytes_per_key, int64_t keys) {
  return std::clamp<int64_t>(layer_share(memory) / bytes_per_key, 1, keys);
}

/// Logits and attention of one row over `keys`, float32.
constexpr int64_t row_bytes(int64_t keys) { return 2 * static_cast<int64_t>(sizeof(float)) * keys; }
constexpr int64_t kMostRows = 16384;
/// Rows of attention over `keys` that are on the device together.
constexpr int64_t rows_together(int64_t memory, int64_t keys) {
  return std::clamp<int64_t>(rows_share(memory) / row_bytes(keys), 1, kMostRows);
}

/// Amounts that a replay walks and keeps, whatever its steps.
struct ReplayCounts {
  int64_t heads = 0;                       ///< Hq
  int64_t value_size = 0;                  ///< dv
  int64_t columns = 0, column_blocks = 0;  ///< of values, padded, and in blocks of a walk
  int64_t sets = 0, output_sets = 0;       ///< kept sets, and those whose outputs are wanted
  int64_t slots = 0, output_slots = 0;     ///< states of walks, and those with outputs
};
/// States and outputs of one step of a replay, float32.
constexpr int64_t step_bytes(const ReplayCounts& of) {
  const int64_t outputs = (of.output_sets + 1) * of.value_size;
  const int64_t states = of.output_slots * of.columns + of.slots * of.column_blocks * 4 +
                         of.sets * 4;
  return (outputs + states) * of.heads * static_cast<int64_t>(sizeof(float));
}
/// Steps of a replay that are on the device together: blocks of about the same height.
constexpr int64_t steps_together(int64_t memory, const ReplayCounts& of, int64_t steps) {
  const int64_t most = std::min(steps, replay_share(memory) / step_bytes(of));
  const int64_t height = std::max<int64_t>(most, 1);
  const int64_t blocks = (steps + height - 1) / height;
  return (steps + blocks - 1) / blocks;
}

}  // namespace kvsim::cuda
