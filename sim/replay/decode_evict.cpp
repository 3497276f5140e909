// Slots that stay whatever they score, and slots that leave.
#include "sim/replay/decode_slots.hpp"

namespace kvsim {
SlotProtection::SlotProtection(const LayerWork& work, const KeptSets& kept,
                               const Settings& settings)
    : entries_(work.entries()), sinks_(settings.count(keys::sinks)),
      keeps_prompt_(settings.flag(keys::keep_prompt)),
      listed_(listed_entries(
          resolve_spans(settings.list(keys::whitelist), work.info().spans, work.entries()),
          work.entries())) {
  any_listed_ = contains(listed_, 1);
  const auto& queries = chosen<Queries>(settings);
  for (const int64_t b : kept.places) {
    window_.push_back(queries.window(settings, b, work.info().total_len));
    newest_.push_back(std::max(window_.back(), newest_protected(settings, work.layer(), b)));
  }
}

/// Whole blocks of lowest score, the older of equals, until `least` slots have left; none where
/// every block is protected or goes on behind the newest slot.
std::vector<int64_t> SlotVictims::lowest_blocks(size_t owner, const std::vector<int64_t>& open,
                                                int64_t least) {
  const SlotCache& cache = owners_[owner];
  const int64_t size = settings_.count(keys::block);
  const std::vector<double>& score = scores_.of(owner);
  struct Block {
    int64_t first, last;  // slots
    double score;
  };
  std::vector<Block> blocks;
  for (int64_t s = 0; s < cache.size();) {
    const int64_t number = cache.position(s) / size, first = s;
    while (s < cache.size() && cache.position(s) / size == number) ++s;
    const auto from = std::ranges::lower_bound(open, first);
    const bool whole = std::ranges::lower_bound(open, s) - from == s - first;
    if (!whole || (number + 1) * size - 1 > cache.positions().back()) continue;
    blocks.push_back(
        {first, s, block_score_of(settings_, std::span(score).subspan(first, s - first))});
  }
  std::ranges::stable_sort(blocks, {}, &Block::score);
  std::vector<int64_t> leaving;
  for (const Block& block : blocks) {
    if (std::ssize(leaving) >= least) break;
    for (int64_t s = block.first; s < block.last; ++s) leaving.push_back(s);
  }
  std::ranges::sort(leaving);
  return leaving;
}

/// The slot of lowest score that nothing protects, the oldest of equals; -1 where all are
/// protected.
int64_t SlotVictims::lowest(size_t owner) {
  const int64_t end = owners_[owner].size() - protection_.newest(owner);
  const std::vector<double>& score = scores_.of(owner);
  int64_t lowest = -1;
  for (int64_t s = 0; s < end; ++s)
    if ((lowest < 0 || score[s] < score[lowest]) && !protection_.holds(owner, owners_[owner], s))
      lowest = s;
  return lowest;
}

/// Of the slots that nothing protects those of largest deviation stay, too (RoCo).
void SlotVictims::leave_out_deviating(size_t owner, std::vector<int64_t>& open) const {
  const SlotStatistic* const deviation = scores_.deviations(owner);
  if (!deviation) return;
  const int64_t b = kept_.places[owner];
  const int64_t spread = settings_.decimal(keys::std_keep).floor_times(b) -
                         newest_protected(settings_, layer_, b);
  const auto count = std::clamp<int64_t>(spread, 0, std::ssize(open));
  std::ranges::sort(open, [&](int64_t a, int64_t c) {
    const double x = deviation->score(a), y = deviation->score(c);
    return x != y ? x > y : a > c;
  });
  open.erase(open.begin(), open.begin() + count);
}

std::vector<int64_t> SlotVictims::of(size_t owner) {
  const SlotCache& cache = owners_[owner];
  const int64_t b = kept_.places[owner];
  const int64_t buffer = settings_.share(keys::buffer, b);
  if (cache.size() <= b + buffer) return {};
  const int64_t batch = std::max(buffer + 1, settings_.share(keys::evict_batch, b));
  const bool in_blocks = settings_.count(keys::block) > 1;
  if (batch == 1 && !scores_.deviations(owner) && !in_blocks)
    if (const int64_t slot = lowest(owner); slot >= 0) return {slot};
  std::vector<int64_t> open;
  open.reserve(cache.size());
  for (int64_t s = 0; s < cache.size(); ++s)
    if (!protection_.holds(owner, owners_[owner], s)) open.push_back(s);
  leave_out_deviating(owner, open);
  if (open.empty()) {  // the oldest that is no sink, or of the sinks the newest
    int64_t oldest = 0;
    while (oldest + 1 < cache.size() && cache.position(oldest) < protection_.first_open()) ++oldest;
    return {oldest};
  }
  if (in_blocks)
    if (auto leaving = lowest_blocks(owner, open, batch); !leaving.empty()) return leaving;
  const auto count = std::min<int64_t>(batch, std::ssize(open));
  const std::vector<double>& score = scores_.of(owner);
  const auto goes_first = [&](int64_t x, int64_t y) {
    const double a = score[x], c = score[y];
    return a != c ? a < c : x < y;
  };
  std::ranges::partial_sort(open, open.begin() + count, goes_first);
  open.resize(count);
  std::ranges::sort(open);
  return open;
}

}  // namespace kvsim
