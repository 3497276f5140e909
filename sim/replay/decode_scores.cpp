// Scores of slots while decoding, and the factors that they are multiplied with.
#include "sim/replay/decode_slots.hpp"
#include "sim/stages/merge/merge.hpp"

namespace kvsim {
namespace {

/// W^h of heads first..first+count-1, [dv][D] each.
std::vector<Table<float>> output_slices(const LayerTrace& layer, int first, int count) {
  std::vector<Table<float>> slices;
  for (int x = 0; x < count; ++x) {
    Table<float>& slice = slices.emplace_back(layer.wo.dim(1), layer.wo.dim(2));
    layer.wo.read(first + x, 0, layer.wo.dim(1), slice.data());
  }
  return slices;
}

}  // namespace

void for_owners(const std::vector<SlotCache>& owners, int64_t steps,
                const std::function<void(size_t)>& body) {
  constexpr int64_t kWorthThreads = int64_t{1} << 22;  // about a millisecond of one core
  int64_t work = 0;
  for (const SlotCache& cache : owners)
    work += steps * cache.size() * cache.heads() * (cache.key_dim() + cache.value_dim());
  if (work < kWorthThreads) {
    for (size_t owner = 0; owner < owners.size(); ++owner) body(owner);
    return;
  }
  parallel_for(std::ssize(owners), [&](int64_t owner) { body(owner); });
}

void SlotWeights::start() {
  const Weight& weight = chosen<Weight>(settings_);
  if (weight.changes_nothing()) return;
  weights_.resize(owners_.size());
  outputs_.resize(owners_.size());
  for (size_t o = 0; weight.needs_outputs() && o < owners_.size(); ++o)
    outputs_[o] = output_slices(work_.trace(), owners_[o].first_head(), owners_[o].heads());
  if (chosen<Normalize>(settings_).per_entry()) {
    token_weight_.assign(work_.info().total_len, 0.0);
    std::set<int64_t> held;
    for (const SlotCache& cache : owners_)
      held.insert(cache.positions().begin(), cache.positions().end());
    for (const int64_t position : held) sum_over_heads(position);
  }
  for (size_t o = 0; o < owners_.size(); ++o) {
    weights_[o].resize(owners_[o].size());
    weigh_all(o);
  }
}

void SlotWeights::sum_over_heads(int64_t position) {
  std::vector<float> value(work_.value_dim());
  double& sum = token_weight_[position];
  sum = 0;
  for (size_t o = 0; o < owners_.size(); ++o) {
    work_.trace().v.read(owners_[o].first_head() / work_.group_size(), position, position + 1,
                         value.data());
    sum += chosen<Weight>(settings_).of_value(value, outputs_[o]);
  }
}

void SlotWeights::weigh(size_t owner, int64_t slot) {
  const SlotCache& cache = owners_[owner];
  double weight = chosen<Weight>(settings_).of_value(cache.value(slot), outputs_[owner]);
  const double sum = token_weight_.empty() ? 0 : token_weight_[cache.position(slot)];
  if (sum != 0) weight /= sum;  // a divisor of 0 leaves the score
  weights_[owner][slot] = weight;
}

void SlotWeights::weigh_all(size_t owner) {
  for (int64_t s = 0; !weights_.empty() && s < owners_[owner].size(); ++s) weigh(owner, s);
}

void SlotWeights::append(size_t owner) {
  if (weights_.empty()) return;
  weights_[owner].push_back(0);
  weigh(owner, owners_[owner].size() - 1);
}

void SlotWeights::erase(size_t owner, std::span<const int64_t> slots) {
  if (!weights_.empty()) erase_rows(weights_[owner], 1, slots);
}

void SlotWeights::apply(size_t owner, std::span<double> scores) const {
  if (weights_.empty()) return;
  const double epsilon = settings_.real(keys::weight_epsilon);
  for (size_t s = 0; s < scores.size(); ++s) scores[s] = (scores[s] + epsilon) * weights_[owner][s];
}

SlotScores::SlotScores(const LayerWork& work, const std::vector<SlotCache>& owners,
                       const KeptSets& kept, const Settings& settings, uint64_t seed,
                       const SlotProtection& protection)
    : work_(work), owners_(owners), kept_(kept), settings_(settings), seed_(seed),
      protection_(protection), of_rows_(chosen<Indicator>(settings).as<ScoresSlotRows>()),
      of_slots_(chosen<Indicator>(settings).as<ScoresSlots>()),
      of_queries_(chosen<Indicator>(settings).as<FollowsQueries>()), scores_(kept.owners.size()),
      weights_(work, owners, settings) {}

void SlotScores::start(PromptStatistics* prompt, const Compressed& compressed) {
  if (prompt) {
    statistics_ = prompt->take_scores();
    deviations_ = prompt->take_deviations();
  }
  follow_queries();
  remember(compressed.evicted);
  for (size_t o = 0; o < owners_.size(); ++o) {
    merge(o, compressed.steps[o]);
    erase(o, compressed.evicted[o]);
  }
  weights_.start();
}

bool SlotScores::owners_are_apart() const {
  const bool of_layer = !statistics_.empty() && chosen<Group>(settings_).span() == GroupSpan::layer;
  return !chosen<Union>(settings_).unites() && !weights_.of_all_heads() && !of_layer;
}

void SlotScores::append(size_t owner) {
  for (auto* statistics : {&statistics_, &deviations_})
    if (!statistics->empty()) (*statistics)[owner]->append();
  if (!remembered_.empty()) remembered_[owner].push_back(NAN);
  weights_.append(owner);
}

void SlotScores::see_query(size_t owner, int x, std::span<const float> query) {
  if (!scorers_.empty()) scorers_[owner]->see(x, query, owners_[owner].positions().back());
}

/// Rows are grouped before they enter a statistic: [1][slots], or [heads][slots] for the layer's
/// mean.
Table<double> SlotScores::grouped_rows(size_t owner, const OwnerAttention& attention) const {
  const Group& group = chosen<Group>(settings_);
  const SlotCache& cache = owners_[owner];
  const bool layer = group.span() == GroupSpan::layer;
  Table<double> grouped(layer ? cache.heads() : 1, cache.size());
  std::vector<double> row(cache.size());
  for (int x = 0; x < cache.heads(); ++x) {
    of_rows_->slot_row(attention.attention().row(x), row);
    if (layer)
      std::ranges::copy(row, grouped.row(x).begin());
    else
      group.add(x, cache.heads(), row, grouped.row(0));
  }
  return grouped;
}

void SlotScores::add_row(size_t owner, std::span<const double> row) {
  for (auto* statistics : {&statistics_, &deviations_})
    if (!statistics->empty()) (*statistics)[owner]->add_row(row, owners_[owner].size());
}

void SlotScores::see(size_t owner, const OwnerAttention& attention) {
  if (!statistics_.empty()) add_row(owner, grouped_rows(owner, attention).values());
}

/// Heads of different owners hold different slots, so the layer's mean goes by position; a head
/// without the slot counts as 0.
void SlotScores::see(std::span<const OwnerAttention> attention) {
  if (statistics_.empty()) return;
  std::vector<Table<double>> grouped(owners_.size());
  for_owners(owners_, 1, [&](size_t o) { grouped[o] = grouped_rows(o, attention[o]); });
  if (chosen<Group>(settings_).span() != GroupSpan::layer) {
    for (size_t o = 0; o < owners_.size(); ++o) add_row(o, grouped[o].values());
    return;
  }
  by_position_.resize(work_.info().total_len, 0.0);
  for (const SlotCache& cache : owners_)  // no more than what is read below
    for (const int64_t position : cache.positions()) by_position_[position] = 0;
  for (size_t o = 0; o < owners_.size(); ++o)
    for (int64_t x = 0; x < grouped[o].rows(); ++x)
      for (int64_t s = 0; s < owners_[o].size(); ++s)
        by_position_[owners_[o].position(s)] += grouped[o](x, s);
  for_owners(owners_, 1, [&](size_t o) {
    std::vector<double> row;  // mean over all query heads of the layer
    row.reserve(owners_[o].size());
    for (const int64_t position : owners_[o].positions())
      row.push_back(by_position_[position] / work_.query_heads());
    add_row(o, row);
  });
}

void SlotScores::merge(size_t owner, const std::vector<MergeOwner::Step>& steps) {
  const Votes& votes = votes_of(settings_);
  for (auto* statistics : {&statistics_, &deviations_})
    for (size_t k = 0; !statistics->empty() && k < steps.size(); ++k)
      (*statistics)[owner]->merge(steps[k].from, steps[k].into, votes.weight(steps[k].entries_from),
                                  votes.weight(steps[k].entries_into));
}

void SlotScores::erase(size_t owner, std::span<const int64_t> slots) {
  for (auto* statistics : {&statistics_, &deviations_})
    if (!statistics->empty()) (*statistics)[owner]->erase(slots);
  if (!remembered_.empty()) erase_rows(remembered_[owner], 1, slots);
  weights_.erase(owner, slots);
}

/// One for each owner, where the indicator looks at queries; they see those of the prompt.
void SlotScores::follow_queries() {
  if (!of_queries_) return;
  const LayerTrace& layer = work_.trace();
  const Segment segment = decode_segment(settings_, kept_.budget, work_.info());
  const std::vector<int64_t> stored = stored_queries(work_, segment.positions, false);
  for (const SlotCache& cache : owners_) {
    scorers_.push_back(of_queries_->follow_queries(work_, settings_, cache.heads()));
    std::vector<float> query(cache.key_dim());
    for (size_t j = 0; j < stored.size(); ++j)
      for (int x = 0; x < cache.heads(); ++x) {
        layer.q.read(cache.first_head() + x, stored[j], stored[j] + 1, query.data());
        scorers_.back()->see(x, query, segment.positions[j]);
      }
  }
}

/// Scores that the compression at n gave the slots that it kept: of all entries on one scale.
void SlotScores::remember(const std::vector<std::vector<int64_t>>& evicted) {
  const auto& memory = chosen<Memory>(settings_);
  if (memory.changes_nothing()) return;
  for (size_t o = 0; o < owners_.size(); ++o) {
    const int64_t slots = work_.entries();  // those that leave are erased later
    remembered_.emplace_back(slots, NAN);
    if (evicted[o].empty()) continue;
    std::vector<double> scores(slots);
    statistics_[o]->finish(scores);
    const auto scored = slots - std::min(slots, protection_.window(o));
    smooth(std::span(scores).first(scored));
    memory.level(std::span(scores).first(scored));
    std::ranges::copy(std::span(scores).first(scored), remembered_[o].begin());
  }
}

/// The larger of now and before, or what the kind of memory makes of both; remembered from now on.
void SlotScores::recall(size_t owner, std::span<double> scores) {
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
void SlotScores::score_by_queries(size_t owner, std::vector<double>& scores) const {
  const SlotCache& cache = owners_[owner];
  std::vector<int64_t> open, positions;
  std::vector<float> keys;
  for (int64_t s = 0; s < cache.size(); ++s) {
    if (protection_.holds(owner, cache, s)) continue;
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

void SlotScores::smooth(std::span<double> scores) const {
  const auto& kind = chosen<Smooth>(settings_);
  if (kind.changes_nothing()) return;
  const std::vector<double> before(scores.begin(), scores.end());
  kind.apply(settings_, PositionDrift(0), before, scores);
}

/// Smoothed over the neighbouring slots, joined with what was said before, and lowered by what the
/// other slots say, too.
void SlotScores::pool(size_t owner, std::vector<double>& scores) {
  const auto& redundancy = chosen<Redundancy>(settings_);
  const SlotCache& cache = owners_[owner];
  const auto scored = static_cast<size_t>(
      std::max<int64_t>(0, cache.size() - protection_.window(owner)));
  smooth(std::span(scores).first(scored));
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

const std::vector<double>& SlotScores::score(size_t owner) {
  const SlotCache& cache = owners_[owner];
  std::vector<double>& all = scores_[owner];
  all.resize(cache.size());
  if (!statistics_.empty()) {
    statistics_[owner]->finish(all);
  } else if (!scorers_.empty()) {
    score_by_queries(owner, all);
  } else {
    for (int64_t s = 0; s < cache.size(); ++s)
      all[s] = of_slots_->slot_score(
          {seed_, work_.layer(), cache.owner(), cache.position(s), cache.key(s)});
  }
  pool(owner, all);
  weights_.apply(owner, all);
  return all;
}

const std::vector<double>& SlotScores::of(size_t owner) {
  return united_ ? scores_[owner] : score(owner);
}

void SlotScores::unite() {
  united_ = false;
  const SlotCache& cache = owners_.front();
  const auto& united = chosen<Union>(settings_);
  if (!united.unites() ||
      cache.size() <= kept_.places.front() + settings_.share(keys::buffer, kept_.places.front()))
    return;
  Table<double> scores(std::ssize(owners_), cache.size());
  for_owners(owners_, 1, [&](size_t o) {
    std::ranges::copy(score(o), scores.row(static_cast<int64_t>(o)).begin());
  });
  united.apply({0, std::max<int64_t>(0, cache.size() - protection_.window(0))}, scores);
  for (int64_t o = 0; o < std::ssize(owners_); ++o)
    std::ranges::copy(scores.row(o), scores_[o].begin());
  united_ = true;
}

}  // namespace kvsim
