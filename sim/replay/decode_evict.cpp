#include <algorithm>
#include <numeric>

#include "sim/replay/decode_scratch.hpp"
#include "sim/stages/merge/votes.hpp"
#include "sim/stages/protect/protect.hpp"
#include "sim/stages/queries/queries.hpp"
#include "sim/stages/schedule/schedule.hpp"
#include "sim/stages/spans.hpp"
#include "sim/stages/weight/weight.hpp"

namespace kvsim {

std::vector<uint8_t> listed_entries(const TraceInfo& info, const Settings& settings) {
  std::vector<uint8_t> listed(static_cast<size_t>(info.prompt_len), 0);
  for (const Range& range :
       resolve_spans(settings.list(keys::whitelist), info.spans, info.prompt_len))
    std::fill(listed.begin() + range.begin, listed.begin() + range.end, uint8_t{1});
  return listed;
}

/// Rows are grouped before they enter a statistic. Heads of different owners hold different slots,
/// so the layer's mean goes by position; a head without the slot counts as 0.
void DecodeRun::update_statistics() {
  if (scores_.empty()) return;
  const Group& group = chosen<Group>(settings_);
  const Indicator& indicator = chosen<Indicator>(settings_);
  const bool layer = group.span() == GroupSpan::layer;
  std::vector<Table<double>> grouped(owners_.size());
  for_owners([&](size_t o) {
    const SlotCache& cache = owners_[o];
    std::vector<double> row(static_cast<size_t>(cache.size()));
    grouped[o] = Table<double>(layer ? cache.heads() : 1, cache.size());
    for (int x = 0; x < cache.heads(); ++x) {
      indicator.slot_row(scratch_[o].attention.row(x), row);
      if (layer)
        std::ranges::copy(row, grouped[o].row(x).begin());
      else
        group.add(x, cache.heads(), row, grouped[o].row(0));
    }
  });
  std::vector<double>& by_position = by_position_;
  if (layer) {
    by_position.resize(static_cast<size_t>(work_.info().total_len), 0.0);
    for (const SlotCache& cache : owners_)  // no more than what is read below
      for (const int64_t position : cache.positions())
        by_position[static_cast<size_t>(position)] = 0;
    for (size_t o = 0; o < owners_.size(); ++o)
      for (int64_t x = 0; x < grouped[o].rows(); ++x)
        for (int64_t s = 0; s < owners_[o].size(); ++s)
          by_position[static_cast<size_t>(owners_[o].position(s))] += grouped[o](x, s);
  }
  for_owners([&](size_t o) {
    const std::vector<double> row = layer ? layer_row(o, by_position) : grouped[o].values();
    scores_[o]->add_row(row, owners_[o].size());
    if (!deviations_.empty()) deviations_[o]->add_row(row, owners_[o].size());
  });
}

/// Mean over all query heads of the layer, for the slots of one owner.
std::vector<double> DecodeRun::layer_row(size_t owner,
                                         const std::vector<double>& by_position) const {
  std::vector<double> row;
  for (const int64_t position : owners_[owner].positions())
    row.push_back(by_position[static_cast<size_t>(position)] / work_.query_heads());
  return row;
}

/// Slots that no score can evict: whitelist, sinks, and the newest `window` or `recent`.
std::vector<uint8_t> DecodeRun::protection(size_t owner) const {
  const SlotCache& cache = owners_[owner];
  const int64_t b = kept_.places[owner];
  const auto& queries = chosen<Queries>(settings_);
  const int64_t newest = std::max(queries.window(settings_, b, work_.info().total_len),
                                  newest_protected(settings_, work_.layer(), b));
  const int64_t sinks = settings_.count(keys::sinks);
  std::vector<uint8_t> safe(static_cast<size_t>(cache.size()), 0);
  for (int64_t s = 0; s < cache.size(); ++s) {
    const int64_t position = cache.position(s);
    const bool listed = position < work_.entries() && whitelisted_[static_cast<size_t>(position)];
    safe[static_cast<size_t>(s)] = listed || position < sinks || s >= cache.size() - newest;
  }
  return safe;
}

double DecodeRun::score(size_t owner, int64_t slot) const {
  const SlotCache& cache = owners_[owner];
  const double score = scores_.empty() ? chosen<Indicator>(settings_).slot_score(
                                             {seed_, work_.layer(), cache.owner(),
                                              cache.position(slot), cache.key(slot)})
                                       : scores_[owner]->score(slot);
  if (weights_.empty()) return score;
  return (score + settings_.real(keys::weight_epsilon)) *
         weights_[owner][static_cast<size_t>(slot)];
}

/// Slots that leave an owner that is over its budget, ascending.
std::vector<int64_t> DecodeRun::victims(size_t owner) const {
  const SlotCache& cache = owners_[owner];
  const int64_t b = kept_.places[owner];
  if (cache.size() <= b) return {};
  const std::vector<uint8_t> safe = protection(owner);
  std::vector<int64_t> open;
  for (int64_t s = 0; s < cache.size(); ++s)
    if (!safe[static_cast<size_t>(s)]) open.push_back(s);
  if (!deviations_.empty()) {  // of the rest, those of largest deviation (RoCo)
    const int64_t spread = settings_.decimal(keys::std_keep).floor_times(b) -
                           newest_protected(settings_, work_.layer(), b);
    const auto count = std::clamp<int64_t>(spread, 0, static_cast<int64_t>(open.size()));
    const SlotStatistic& deviation = *deviations_[owner];
    std::ranges::sort(open, [&](int64_t a, int64_t c) {
      const double x = deviation.score(a);
      const double y = deviation.score(c);
      return x != y ? x > y : a > c;
    });
    open.erase(open.begin(), open.begin() + count);
  }
  if (open.empty()) {  // the oldest that is no sink, or of the sinks the newest
    const int64_t sinks = settings_.count(keys::sinks);
    int64_t oldest = 0;
    while (oldest + 1 < cache.size() && cache.position(oldest) < sinks) ++oldest;
    return {oldest};
  }
  const int64_t batch = std::max<int64_t>(1, settings_.share(keys::evict_batch, b));
  const auto count = std::min<int64_t>(batch, static_cast<int64_t>(open.size()));
  std::vector<std::pair<double, int64_t>> scored;
  scored.reserve(open.size());
  for (const int64_t s : open) scored.emplace_back(score(owner, s), s);
  if (count == 1) return {std::ranges::min(scored).second};
  std::partial_sort(scored.begin(), scored.begin() + count, scored.end());
  open.resize(static_cast<size_t>(count));
  for (size_t x = 0; x < open.size(); ++x) open[x] = scored[x].second;
  std::ranges::sort(open);
  return open;
}

void DecodeRun::evict() {
  const auto& merge = chosen<Merge>(settings_);
  MergeRequest request{&settings_, seed_, work_.layer(), {}, &memory_};
  request.owners.resize(owners_.size());
  for_owners([&](size_t o) {
    MergeOwner& owner = request.owners[o];
    owner.cache = &owners_[o];
    owner.evicted = victims(o);
    if (!merge.uses_attention()) return;
    const Table<double>& attention = scratch_[o].attention;
    owner.attention.assign(static_cast<size_t>(attention.columns()), 0.0);
    for (int64_t x = 0; x < attention.rows(); ++x)
      for (size_t s = 0; s < owner.attention.size(); ++s)
        owner.attention[s] += attention(x, static_cast<int64_t>(s)) /
                              static_cast<double>(attention.rows());
  });
  const bool nobody = std::ranges::all_of(
      request.owners, [](const MergeOwner& owner) { return owner.evicted.empty(); });
  if (nobody) return;
  merge.apply(request);
  for (size_t o = 0; o < owners_.size(); ++o) {
    MergeOwner& owner = request.owners[o];
    undefined_scales_ += owner.undefined_scales;
    scales_.insert(scales_.end(), owner.scales.begin(), owner.scales.end());
    merge_statistics(o, owner.steps, owner.evicted);
    if (note_pairs_) follow_pairs(owner);
    owners_[o].erase(owner.evicted);
    if (weights_.empty()) continue;
    erase_rows(weights_[o], 1, owner.evicted);
    if (merges(settings_))  // merges change values
      for (int64_t s = 0; s < owners_[o].size(); ++s) weigh(o, s);
  }
}

void DecodeRun::add_pair(PairMerge pair) {
  open_pairs_[{pair.first_head, pair.into}] = pairs_.size();
  pairs_.push_back(std::move(pair));
}

/// Pairs end when their slot leaves or takes in a third entry; new ones begin. The newest slot is
/// that of the query after which this happens.
void DecodeRun::follow_pairs(const MergeOwner& owner) {
  const SlotCache& cache = *owner.cache;
  const int64_t now = cache.position(cache.size() - 1);
  const auto end = [&](int64_t slot) {
    const auto found = open_pairs_.find(
        {cache.first_head(), static_cast<uint32_t>(cache.position(slot))});
    if (found == open_pairs_.end()) return;
    pairs_[found->second].last = now;
    open_pairs_.erase(found);
  };
  for (const MergeOwner::Step& step : owner.steps) end(step.into);
  for (const int64_t slot : owner.evicted) end(slot);
  for (PairMerge& pair : pairs_made(owner, settings_, now)) add_pair(std::move(pair));
}

void DecodeRun::merge_statistics(size_t owner, const std::vector<MergeOwner::Step>& steps,
                                 const std::vector<int64_t>& evicted) {
  const Votes& votes = votes_of(settings_);
  for (auto* statistics : {&scores_, &deviations_}) {
    if (statistics->empty()) continue;
    SlotStatistic& statistic = *(*statistics)[owner];
    for (const MergeOwner::Step& step : steps)
      statistic.merge(step.from, step.into, votes.weight(step.entries_from),
                      votes.weight(step.entries_into));
    statistic.erase(evicted);
  }
}

}  // namespace kvsim
