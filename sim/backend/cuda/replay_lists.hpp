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

constexpr int64_t kSegment = 16384;  // keys of the prompt per walk: enough walks for all blocks
constexpr int64_t kMostSegments = 32;

/// Lists that one replay walks, whatever its rows: later positions, segments of the prompt, bands
/// of the plans; each in chunks of positions, with its keys ascending. See finish.hpp for the
/// slots; those of plans whose outputs are wanted come first.
class ReplayLists {
 public:
  ReplayLists(const LayerTrace& layer, const ReplayRequest& request, int64_t chunk,
              PinnedBuffer<uint32_t>& list_memory)
      : layer_(layer), request_(request), n_(layer.info->prompt_len), all_(layer.k.dim(1)),
        chunk_(std::max<int64_t>(chunk, 1)), chunks_((all_ + chunk_ - 1) / chunk_),
        query_heads_(layer.info->num_query_heads), kv_heads_(layer.info->num_kv_heads),
        group_(layer.info->group_size()) {
    prompt_slots = std::clamp<int64_t>((n_ + kSegment - 1) / kSegment, 1, kMostSegments);
    number_sets();
    mark_everything();
    lay_out_plans(list_memory);
  }

  /// Walks of one chunk for a block of `steps` steps up to `last_position`, longest first.
  std::vector<WalkItem> items(int64_t chunk_index, int64_t steps, int64_t last_position) const {
    std::vector<WalkItem> items;
    add_range(items, chunk_index, {n_, last_position + 1}, kLaterSlot, steps);
    const int64_t segment = (n_ + prompt_slots - 1) / prompt_slots;
    for (int64_t s = 0; s < prompt_slots; ++s)
      add_range(items, chunk_index, {s * segment, std::min(n_, (s + 1) * segment)},
                kFirstPromptSlot + s, steps);
    for (size_t p = 0; p < plans.size(); ++p) {
      const ReplayPlan& plan = request_.plans[p];
      const int64_t heads = plan.per_query_head ? 1 : group_;  // that an owner has
      for (int64_t owner = 0; owner < std::ssize(plan.owners); ++owner)
        for (int64_t band = 0; band < plans[p].bands; ++band) {
          const KeyRun& run = owners_[p][owner][chunk_index * plans[p].bands + band];
          if (run.count == 0 && chunk_index > 0) continue;
          items.push_back({.first_row = static_cast<int32_t>(owner * heads * steps),
                           .rows = static_cast<int32_t>(heads * steps),
                           .kv_head = static_cast<int32_t>(owner * heads / group_),
                           .slot = static_cast<int32_t>(plans[p].first_slot + band),
                           .first_key = run.first,
                           .keys = static_cast<int32_t>(run.count),
                           .fresh = chunk_index == 0,
                           .outputs = !plan.masses_only,
                           .weighted = request_.importance != nullptr});
        }
    }
    std::stable_sort(items.begin(), items.end(),
                     [](const WalkItem& a, const WalkItem& b) { return a.keys > b.keys; });
    return items;
  }

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
  /// Sets are numbered plan by plan; slots likewise, but those with outputs first.
  void number_sets() {
    slots = kFirstPromptSlot + prompt_slots;
    plans.resize(request_.plans.size());
    for (const bool outputs : {true, false}) {
      for (size_t p = 0; p < plans.size(); ++p) {
        if (request_.plans[p].masses_only == outputs) continue;
        plans[p].first_slot = static_cast<int32_t>(slots);
        slots += request_.plans[p].boundaries();
      }
      if (outputs) output_slots = slots;
    }
    for (size_t p = 0; p < plans.size(); ++p) {
      const int64_t bands = request_.plans[p].boundaries();
      plans[p].bands = static_cast<int32_t>(bands);
      plans[p].first_set = static_cast<int32_t>(sets);
      plans[p].first_output = request_.plans[p].masses_only ? -1
                                                            : static_cast<int32_t>(output_sets);
      sets += bands;
      if (!request_.plans[p].masses_only) output_sets += bands;
    }
  }
  void mark_everything() {
    everything.assign(sets * query_heads_, 0);
    for (size_t p = 0; p < plans.size(); ++p)
      for (int64_t band = 0; band < plans[p].bands; ++band)
        for (int64_t head = 0; head < query_heads_; ++head) {
          const ReplayPlan& plan = request_.plans[p];
          const KeptChain& chain = plan.owners[plan.per_query_head ? head : head / group_];
          everything[(plans[p].first_set + band) * query_heads_ + head] = chain.end[band] == n_;
        }
  }
  /// Every owner of every plan has its place behind the positions: all are laid out side by side.
  void lay_out_plans(PinnedBuffer<uint32_t>& list_memory) {
    struct Place {
      size_t plan, owner;
      int64_t first;
    };
    std::vector<Place> places;
    int64_t size = all_;
    owners_.resize(plans.size());
    for (size_t p = 0; p < plans.size(); ++p) {
      owners_[p].resize(request_.plans[p].owners.size());
      for (size_t o = 0; o < owners_[p].size(); ++o) {
        places.push_back({p, o, size});
        size += request_.plans[p].owners[o].end.back();
      }
    }
    uint32_t* const keys = list_memory.reserve(size);
    std::iota(keys, keys + all_, 0u);
    parallel_for(std::ssize(places), [&](int64_t i) {
      const auto& [plan, owner, first] = places[i];
      owners_[plan][owner] = lay_out(request_.plans[plan].owners[owner], keys, first);
    });
    list = {keys, static_cast<size_t>(size)};
  }
  /// Walks of all KV heads over a range of positions.
  void add_range(std::vector<WalkItem>& items, int64_t chunk_index, Range positions, int64_t slot,
                 int64_t steps) const {
    const Range here = this->positions(chunk_index);
    const Range part{std::max(here.begin, positions.begin), std::min(here.end, positions.end)};
    if (part.size() <= 0 && chunk_index > 0) return;
    const bool later = slot == kLaterSlot;
    for (int64_t kv = 0; kv < kv_heads_; ++kv) {
      items.push_back(
          {.first_row = static_cast<int32_t>(kv * group_ * steps),
           .rows = static_cast<int32_t>(group_ * steps),
           .kv_head = static_cast<int32_t>(kv),
           .slot = static_cast<int32_t>(slot),
           .first_key = part.begin,
           .keys = static_cast<int32_t>(std::max<int64_t>(part.size(), 0)),
           .masked = later,
           .fresh = chunk_index == 0,
           .outputs = 1,
           .weighted = request_.importance != nullptr && (!later || request_.later_importance)});
    }
  }
  /// Sorts the keys of a chain by chunk, band and position, into the list from `first` on.
  std::vector<KeyRun> lay_out(const KeptChain& chain, uint32_t* keys, int64_t first) const {
    const size_t bands = chain.end.size();
    const uint32_t dropped = static_cast<uint32_t>(bands);
    std::vector<uint32_t> band_of(n_, dropped);
    int64_t at = 0;
    for (size_t band = 0; band < bands; ++band)
      for (; at < chain.end[band]; ++at) band_of[chain.order[at]] = static_cast<uint32_t>(band);
    std::vector<KeyRun> runs(static_cast<size_t>(chunks_) * bands);
    const auto run_of = [&](int64_t i) -> KeyRun& {
      return runs[static_cast<size_t>(i / chunk_) * bands + band_of[i]];
    };
    for (int64_t i = 0; i < n_; ++i)
      if (band_of[i] != dropped) ++run_of(i).count;
    for (KeyRun& run : runs) {
      run.first = first;
      first += run.count;
      run.count = 0;
    }
    for (int64_t i = 0; i < n_; ++i) {
      if (band_of[i] == dropped) continue;
      KeyRun& run = run_of(i);
      keys[run.first + run.count++] = static_cast<uint32_t>(i);
    }
    return runs;
  }

  const LayerTrace& layer_;
  const ReplayRequest& request_;
  int64_t n_, all_, chunk_, chunks_;
  int64_t query_heads_, kv_heads_, group_;
  std::vector<std::vector<std::vector<KeyRun>>> owners_;  ///< [plans][owners][chunks * bands]
};

}  // namespace kvsim::cuda
