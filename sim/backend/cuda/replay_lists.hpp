#pragma once
#include "sim/backend/backend.hpp"
#include "sim/backend/cuda/memory.hpp"
#include "sim/backend/cuda/walk.hpp"

namespace kvsim::cuda {

/// Keys that one walk covers: list[first .. first + count).
struct KeyRun {
  int64_t first = 0;
  int64_t count = 0;
};

/// Lists that one replay walks, whatever its rows: later positions, segments of the prompt, bands
/// of the plans; each in chunks of positions, with its keys ascending. See finish.hpp for the
/// slots; those of plans whose outputs are wanted come first.
class ReplayLists {
 public:
  ReplayLists(const LayerTrace& layer, const ReplayRequest& request, int64_t chunk,
              PinnedBuffer<uint32_t>& list);

  /// Walks of one chunk for a block of `steps` steps up to `last_position`, longest first.
  std::vector<WalkItem> items(int64_t chunk_index, int64_t steps, int64_t last_position) const;

  int64_t chunks() const { return chunks_; }
  Range positions(int64_t chunk_index) const {
    return {chunk_index * chunk_, std::min(all_, (chunk_index + 1) * chunk_)};
  }

  /// First all positions, then the plans' keys; pinned memory of the caller.
  std::span<const uint32_t> list;
  std::vector<FinishPlan> plans;
  std::vector<uint8_t> everything;  ///< [sets][Hq]
  int64_t prompt_slots = 0;
  int64_t slots = 0, output_slots = 0;
  int64_t sets = 0, output_sets = 0;

 private:
  void number_sets();
  void mark_everything();
  void lay_out_plans(PinnedBuffer<uint32_t>& list);
  void add_range(std::vector<WalkItem>& items, int64_t chunk_index, Range positions, int64_t slot,
                 int64_t steps) const;
  std::vector<KeyRun> lay_out(const KeptChain& chain, uint32_t* list, int64_t first) const;

  const LayerTrace& layer_;
  const ReplayRequest& request_;
  int64_t n_, all_, chunk_, chunks_;
  int64_t query_heads_, kv_heads_, group_;
  std::vector<std::vector<std::vector<KeyRun>>> owners_;  ///< [plans][owners][chunks * bands]
};

}  // namespace kvsim::cuda
