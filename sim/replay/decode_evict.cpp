#include "sim/replay/decode.hpp"
#include "sim/stages/merge/merge.hpp"

namespace kvsim {

/// Rows are grouped before they enter a statistic: [1][slots], or [heads][slots] for the layer's
/// mean.
Table<double> DecodeRun::grouped_rows(size_t owner) const {
  const Group& group = chosen<Group>(settings_);
  const auto& indicator = dynamic_cast<const ScoresSlotRows&>(chosen<Indicator>(settings_));
  const SlotCache& cache = owners_[owner];
  const bool layer = group.span() == GroupSpan::layer;
  Table<double> grouped(layer ? cache.heads() : 1, cache.size());
  std::vector<double> row(cache.size());
  for (int x = 0; x < cache.heads(); ++x) {
    indicator.slot_row(scratch_[owner].attention.row(x), row);
    if (layer)
      std::ranges::copy(row, grouped.row(x).begin());
    else
      group.add(x, cache.heads(), row, grouped.row(0));
  }
  return grouped;
}

void DecodeRun::add_row(size_t owner, std::span<const double> row) {
  scores_[owner]->add_row(row, owners_[owner].size());
  if (!deviations_.empty()) deviations_[owner]->add_row(row, owners_[owner].size());
}

/// Heads of different owners hold different slots, so the layer's mean goes by position; a head
/// without the slot counts as 0.
void DecodeRun::update_statistics() {
  if (scores_.empty()) return;
  std::vector<Table<double>> grouped(owners_.size());
  for_owners(1, [&](size_t o) { grouped[o] = grouped_rows(o); });
  if (chosen<Group>(settings_).span() != GroupSpan::layer) {
    for (size_t o = 0; o < owners_.size(); ++o) add_row(o, grouped[o].values());
    return;
  }
  std::vector<double>& by_position = by_position_;
  by_position.resize(work_.info().total_len, 0.0);
  for (const SlotCache& cache : owners_)  // no more than what is read below
    for (const int64_t position : cache.positions()) by_position[position] = 0;
  for (size_t o = 0; o < owners_.size(); ++o)
    for (int64_t x = 0; x < grouped[o].rows(); ++x)
      for (int64_t s = 0; s < owners_[o].size(); ++s)
        by_position[owners_[o].position(s)] += grouped[o](x, s);
  for_owners(1, [&](size_t o) { add_row(o, layer_row(o, by_position)); });
}

/// Mean over all query heads of the layer, for the slots of one owner.
std::vector<double> DecodeRun::layer_row(size_t owner,
                                         const std::vector<double>& by_position) const {
  std::vector<double> row;
  row.reserve(owners_[owner].size());
  for (const int64_t position : owners_[owner].positions())
    row.push_back(by_position[position] / work_.query_heads());
  return row;
}

/// How many of the newest slots of each owner no score can evict: the `window`, of slots that are
/// not scored either, or `recent`.
void DecodeRun::find_newest_protected() {
  const auto& queries = chosen<Queries>(settings_);
  for (const int64_t b : kept_.places) {
    window_.push_back(queries.window(settings_, b, work_.info().total_len));
    newest_protected_.push_back(
        std::max(window_.back(), newest_protected(settings_, work_.layer(), b)));
  }
  sinks_ = settings_.count(keys::sinks);
  keeps_prompt_ = settings_.flag(keys::keep_prompt);
  any_whitelisted_ = contains(whitelisted_, 1);
}

/// Whitelist, sinks, the newest, and with keep_prompt the prompt.
bool DecodeRun::is_protected(size_t owner, int64_t slot) const {
  const SlotCache& cache = owners_[owner];
  const int64_t position = cache.position(slot);
  return slot >= cache.size() - newest_protected_[owner] || position < sinks_ ||
         (position < work_.entries() &&
          (keeps_prompt_ || (any_whitelisted_ && whitelisted_[position])));
}

/// One for each owner, where the indicator looks at queries; they see those of the prompt.
void DecodeRun::start_scorers() {
  const auto* const indicator = chosen<Indicator>(settings_).as<FollowsQueries>();
  if (!indicator) return;
  const LayerTrace& layer = work_.trace();
  const Segment segment = decode_segment(settings_, kept_.budget, work_.info());
  const std::vector<int64_t> stored = stored_queries(work_, segment.positions, false);
  for (const SlotCache& cache : owners_) {
    scorers_.push_back(indicator->follow_queries(work_, settings_, cache.heads()));
    std::vector<float> query(cache.key_dim());
    for (size_t j = 0; j < stored.size(); ++j)
      for (int x = 0; x < cache.heads(); ++x) {
        layer.q.read(cache.first_head() + x, stored[j], stored[j] + 1, query.data());
        scorers_.back()->see(x, query, segment.positions[j]);
      }
  }
}

/// Scores that the compression at n gave the slots that it kept: of all entries on one scale.
void DecodeRun::start_memory(const std::vector<std::vector<int64_t>>& evicted) {
  const auto& memory = chosen<Memory>(settings_);
  if (memory.changes_nothing()) return;
  for (size_t o = 0; o < owners_.size(); ++o) {
    const int64_t slots = work_.entries();  // those that leave are erased later
    remembered_.emplace_back(slots, NAN);
    if (evicted[o].empty()) continue;
    std::vector<double> scores(slots);
    scores_[o]->finish(scores);
    const auto scored = slots - std::min(slots, window_[o]);
    smooth_slots(std::span(scores).first(scored));
    memory.level(std::span(scores).first(scored));
    std::ranges::copy(std::span(scores).first(scored), remembered_[o].begin());
  }
}

/// The larger of now and before, or what the kind of memory makes of both; remembered from now on.
void DecodeRun::recall(size_t owner, std::span<double> scores) {
  if (remembered_.empty()) return;
  const auto& memory = chosen<Memory>(settings_);
  memory.level(scores);
  std::vector<double>& before = remembered_[owner];
  for (size_t s = 0; s < scores.size(); ++s) {
    if (!std::isnan(before[s])) scores[s] = memory.join(settings_, before[s], scores[s]);
    before[s] = scores[s];
  }
}

/// From all queries so far; slots that are protected have 0.
void DecodeRun::score_by_queries(size_t owner, std::vector<double>& scores) const {
  const SlotCache& cache = owners_[owner];
  std::vector<int64_t> open, positions;
  std::vector<float> keys;
  for (int64_t s = 0; s < cache.size(); ++s) {
    if (is_protected(owner, s)) continue;
    open.push_back(s);
    positions.push_back(cache.position(s));
    keys.insert(keys.end(), cache.key(s).begin(), cache.key(s).end());
  }
  std::vector<double> row(open.size()), grouped(open.size(), 0.0);
  for (int x = 0; x < cache.heads(); ++x) {
    scorers_[owner]->score({cache.positions().back(), positions, keys}, x, row);
    chosen<Group>(settings_).add(x, cache.heads(), row, grouped);
  }
  std::ranges::fill(scores, 0.0);
  for (size_t k = 0; k < open.size(); ++k) scores[open[k]] = grouped[k];
}

void DecodeRun::smooth_slots(std::span<double> scores) const {
  const auto& smooth = chosen<Smooth>(settings_);
  if (smooth.changes_nothing()) return;
  const std::vector<double> before(scores.begin(), scores.end());
  smooth.apply(settings_, PositionDrift(0), before, scores);
}

/// Smoothed over the neighbouring slots, joined with what was said before, and lowered by what the
/// other slots say, too.
void DecodeRun::pool_scores(size_t owner, std::vector<double>& scores) {
  const auto& redundancy = chosen<Redundancy>(settings_);
  const SlotCache& cache = owners_[owner];
  const auto scored = static_cast<size_t>(std::max<int64_t>(0, cache.size() - window_[owner]));
  smooth_slots(std::span(scores).first(scored));
  recall(owner, std::span(scores).first(scored));
  if (redundancy.changes_nothing()) return;
  std::vector<float> keys;
  keys.reserve(cache.size() * cache.key_dim());
  for (int64_t s = 0; s < cache.size(); ++s)
    keys.insert(keys.end(), cache.key(s).begin(), cache.key(s).end());
  std::vector<double> said = redundancy.of_keys(settings_, keys, cache.key_dim());
  redundancy.level(std::span(said).first(scored));
  for (size_t s = 0; s < scored; ++s) scores[s] = redundancy.mix(settings_, scores[s], said[s]);
}

/// Of every slot, the higher the longer it stays.
const std::vector<double>& DecodeRun::slot_scores(size_t owner) {
  const SlotCache& cache = owners_[owner];
  std::vector<double>& all = scratch_[owner].scores;
  all.resize(cache.size());
  if (!scores_.empty()) {
    scores_[owner]->finish(all);
  } else if (!scorers_.empty()) {
    score_by_queries(owner, all);
  } else {
    const auto& indicator = dynamic_cast<const ScoresSlots&>(chosen<Indicator>(settings_));
    for (int64_t s = 0; s < cache.size(); ++s)
      all[s] = indicator.slot_score(
          {seed_, work_.layer(), cache.owner(), cache.position(s), cache.key(s)});
  }
  pool_scores(owner, all);
  if (weights_.empty()) return all;
  const double epsilon = settings_.real(keys::weight_epsilon);
  for (size_t s = 0; s < all.size(); ++s) all[s] = (all[s] + epsilon) * weights_[owner][s];
  return all;
}

const std::vector<double>& DecodeRun::scores_of(size_t owner) {
  return united_ ? scratch_[owner].scores : slot_scores(owner);
}

/// One score for what all owners hold of an entry, where some leave: they hold the same entries.
void DecodeRun::unite_scores() {
  united_ = false;
  const SlotCache& cache = owners_.front();
  const auto& unite = chosen<Union>(settings_);
  if (!unite.unites() ||
      cache.size() <= kept_.places.front() + settings_.share(keys::buffer, kept_.places.front()))
    return;
  Table<double> scores(std::ssize(owners_), cache.size());
  for_owners(1, [&](size_t o) {
    std::ranges::copy(slot_scores(o), scores.row(static_cast<int64_t>(o)).begin());
  });
  unite.apply({0, std::max<int64_t>(0, cache.size() - window_.front())}, scores);
  for (int64_t o = 0; o < std::ssize(owners_); ++o)
    std::ranges::copy(scores.row(o), scratch_[o].scores.begin());
  united_ = true;
}

/// Whole blocks of lowest score, the older of equals, until `least` slots have left; none where
/// every block is protected or goes on behind the newest slot.
std::vector<int64_t> DecodeRun::lowest_blocks(size_t owner, const std::vector<int64_t>& open,
                                              int64_t least) {
  const SlotCache& cache = owners_[owner];
  const int64_t size = settings_.count(keys::block);
  const std::vector<double>& score = scores_of(owner);
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
int64_t DecodeRun::lowest(size_t owner) {
  const int64_t end = owners_[owner].size() - newest_protected_[owner];
  const std::vector<double>& score = scores_of(owner);
  int64_t lowest = -1;
  for (int64_t s = 0; s < end; ++s)
    if ((lowest < 0 || score[s] < score[lowest]) && !is_protected(owner, s)) lowest = s;
  return lowest;
}

/// Slots that leave an owner that is over its budget and its buffer, ascending.
std::vector<int64_t> DecodeRun::victims(size_t owner) {
  const SlotCache& cache = owners_[owner];
  const int64_t b = kept_.places[owner];
  const int64_t buffer = settings_.share(keys::buffer, b);
  if (cache.size() <= b + buffer) return {};
  const int64_t batch = std::max(buffer + 1, settings_.share(keys::evict_batch, b));
  const bool in_blocks = settings_.count(keys::block) > 1;
  if (batch == 1 && deviations_.empty() && !in_blocks)
    if (const int64_t slot = lowest(owner); slot >= 0) return {slot};
  std::vector<int64_t> open;
  open.reserve(cache.size());
  for (int64_t s = 0; s < cache.size(); ++s)
    if (!is_protected(owner, s)) open.push_back(s);
  if (!deviations_.empty()) {  // of the rest, those of largest deviation (RoCo)
    const int64_t spread = settings_.decimal(keys::std_keep).floor_times(b) -
                           newest_protected(settings_, work_.layer(), b);
    const auto count = std::clamp<int64_t>(spread, 0, std::ssize(open));
    const SlotStatistic& deviation = *deviations_[owner];
    std::ranges::sort(open, [&](int64_t a, int64_t c) {
      const double x = deviation.score(a);
      const double y = deviation.score(c);
      return x != y ? x > y : a > c;
    });
    open.erase(open.begin(), open.begin() + count);
  }
  if (open.empty()) {  // the oldest that is no sink, or of the sinks the newest
    const int64_t first = keeps_prompt_ ? std::max(sinks_, work_.entries()) : sinks_;
    int64_t oldest = 0;
    while (oldest + 1 < cache.size() && cache.position(oldest) < first) ++oldest;
    return {oldest};
  }
  if (in_blocks)
    if (auto leaving = lowest_blocks(owner, open, batch); !leaving.empty()) return leaving;
  const auto count = std::min<int64_t>(batch, std::ssize(open));
  const std::vector<double>& score = scores_of(owner);
  const auto goes_first = [&](int64_t x, int64_t y) {
    const double a = score[x], c = score[y];
    return a != c ? a < c : x < y;
  };
  std::ranges::partial_sort(open, open.begin() + count, goes_first);
  open.resize(count);
  std::ranges::sort(open);
  return open;
}

void DecodeRun::evict() {
  const auto& merge = chosen<Merge>(settings_);
  MergeRequest request{&settings_, seed_, work_.layer(), {}, &memory_};
  request.owners.resize(owners_.size());
  unite_scores();
  for_owners(1, [&](size_t o) {
    MergeOwner& owner = request.owners[o];
    owner.cache = &owners_[o];
    owner.evicted = victims(o);
    if (!merge.uses_attention()) return;
    const Table<double>& attention = scratch_[o].attention;
    owner.attention.assign(attention.columns(), 0.0);
    for (int64_t x = 0; x < attention.rows(); ++x)
      for (int64_t s = 0; s < std::ssize(owner.attention); ++s)
        owner.attention[s] += attention(x, s) / static_cast<double>(attention.rows());
  });
  const bool nobody = std::ranges::all_of(
      request.owners, [](const MergeOwner& owner) { return owner.evicted.empty(); });
  if (nobody) return;
  merge.apply(request);
  for (size_t o = 0; o < owners_.size(); ++o) {
    MergeOwner& owner = request.owners[o];
    undefined_scales_ += owner.undefined_scales;
    scales_.insert(scales_.end(), owner.scales.begin(), owner.scales.end());
    merge_statistics(o, owner.steps);
    if (note_pairs_) follow_pairs(owner);
    drop(o, owner.evicted);
    if (weights_.empty() || !merges(settings_)) continue;
    for (int64_t s = 0; s < owners_[o].size(); ++s) weigh(o, s);  // merges change values
  }
}

void DecodeRun::drop(size_t owner, std::span<const int64_t> slots) {
  erase_statistics(owner, slots);
  owners_[owner].erase(slots);
  if (!weights_.empty()) erase_rows(weights_[owner], 1, slots);
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

void DecodeRun::merge_statistics(size_t owner, const std::vector<MergeOwner::Step>& steps) {
  const Votes& votes = votes_of(settings_);
  for (auto* statistics : {&scores_, &deviations_})
    for (size_t k = 0; !statistics->empty() && k < steps.size(); ++k)
      (*statistics)[owner]->merge(steps[k].from, steps[k].into, votes.weight(steps[k].entries_from),
                                  votes.weight(steps[k].entries_into));
}

void DecodeRun::erase_statistics(size_t owner, std::span<const int64_t> slots) {
  for (auto* statistics : {&scores_, &deviations_})
    if (!statistics->empty()) (*statistics)[owner]->erase(slots);
  if (!remembered_.empty()) erase_rows(remembered_[owner], 1, slots);
}

}  // namespace kvsim
