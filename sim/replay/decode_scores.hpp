#pragma once
#include "sim/replay/decode_slots.hpp"

/// Scores of slots while decoding, the factors that they are multiplied with, and the slots that
/// leave (policies.md 12).
namespace kvsim {

/// W^h of heads first..first+count-1, [dv][D] each.
inline std::vector<Table<float>> output_slices(const LayerTrace& layer, int first, int count) {
  std::vector<Table<float>> slices;
  for (int x = 0; x < count; ++x) {
    Table<float>& slice = slices.emplace_back(layer.wo.dim(1), layer.wo.dim(2));
    layer.wo.read(first + x, 0, layer.wo.dim(1), slice.data());
  }
  return slices;
}

/// The factor w of every slot (stage `weight`); nothing where the record weighs nothing.
class SlotWeights {
 public:
  SlotWeights(const LayerWork& work, const std::vector<SlotCache>& owners, const Settings& settings)
      : work_(work), owners_(owners), settings_(settings) {}

  void start() {
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
  /// Is an entry weighed against all heads together?
  bool of_all_heads() const { return !token_weight_.empty(); }
  /// Weight of an entry in all heads together, by its own values: other heads may no longer hold
  /// it.
  void sum_over_heads(int64_t position) {
    std::vector<float> value(work_.value_dim());
    double& sum = token_weight_[position];
    sum = 0;
    for (size_t o = 0; o < owners_.size(); ++o) {
      work_.trace().v.read(owners_[o].first_head() / work_.group_size(), position, position + 1,
                           value.data());
      sum += chosen<Weight>(settings_).of_value(value, outputs_[o]);
    }
  }
  void append(size_t owner) {
    if (weights_.empty()) return;
    weights_[owner].push_back(0);
    weigh(owner, owners_[owner].size() - 1);
  }
  void erase(size_t owner, std::span<const int64_t> slots) {
    if (!weights_.empty()) erase_rows(weights_[owner], 1, slots);
  }
  /// once more: merges change values
  void weigh_all(size_t owner) {
    for (int64_t s = 0; !weights_.empty() && s < owners_[owner].size(); ++s) weigh(owner, s);
  }
  void apply(size_t owner, std::span<double> scores) const {
    if (weights_.empty()) return;
    const double epsilon = settings_.real(keys::weight_epsilon);
    for (size_t s = 0; s < scores.size(); ++s)
      scores[s] = (scores[s] + epsilon) * weights_[owner][s];
  }

 private:
  void weigh(size_t owner, int64_t slot) {
    const SlotCache& cache = owners_[owner];
    double weight = chosen<Weight>(settings_).of_value(cache.value(slot), outputs_[owner]);
    const double sum = token_weight_.empty() ? 0 : token_weight_[cache.position(slot)];
    if (sum != 0) weight /= sum;  // a divisor of 0 leaves the score
    weights_[owner][slot] = weight;
  }

  const LayerWork& work_;
  const std::vector<SlotCache>& owners_;
  const Settings& settings_;
  std::vector<std::vector<double>> weights_;        ///< w of each slot, or empty
  std::vector<std::vector<Table<float>>> outputs_;  ///< W^h of the owner's heads, or empty
  std::vector<double> token_weight_;                ///< [N] of the heads in all, or empty
};

/// Scores of the slots present, the higher the longer a slot stays: of rows of attention, of what
/// an entry is, or of all queries so far.
class SlotScores {
 public:
  SlotScores(const LayerWork& work, const std::vector<SlotCache>& owners, const KeptSets& kept,
             const Settings& settings, uint64_t seed, const SlotProtection& protection)
      : work_(work), owners_(owners), kept_(kept), settings_(settings), seed_(seed),
        protection_(protection), of_rows_(chosen<Indicator>(settings).as<ScoresSlotRows>()),
        of_slots_(chosen<Indicator>(settings).as<ScoresSlots>()),
        of_queries_(chosen<Indicator>(settings).as<FollowsQueries>()), scores_(kept.owners.size()),
        weights_(work, owners, settings) {}

  /// `prompt`: statistics that saw the prompt's rows; null: none are kept.
  void start(PromptStatistics* prompt, const Compressed& compressed) {
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
  /// Does no owner ask another one for anything?
  bool owners_are_apart() const {
    const bool of_layer = !statistics_.empty() &&
                          chosen<Group>(settings_).span() == GroupSpan::layer;
    return !chosen<Union>(settings_).unites() && !weights_.of_all_heads() && !of_layer;
  }

  /// The newest entry became a slot of an owner, and its query of head x came.
  void append(size_t owner) {
    for (auto* statistics : {&statistics_, &deviations_})
      if (!statistics->empty()) (*statistics)[owner]->append();
    if (!remembered_.empty()) remembered_[owner].push_back(NAN);
    weights_.append(owner);
  }
  void see_query(size_t owner, int x, std::span<const float> query) {
    if (!scorers_.empty()) scorers_[owner]->see(x, query, owners_[owner].positions().back());
  }
  /// Attention of the newest query: of one owner, where they are apart, or of all.
  void see(size_t owner, const OwnerAttention& attention) {
    if (!statistics_.empty()) add_row(owner, grouped_rows(owner, attention).values());
  }
  /// Heads of different owners hold different slots, so the layer's mean goes by position; a head
  /// without the slot counts as 0.
  void see(std::span<const OwnerAttention> attention) {
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
  void merge(size_t owner, const std::vector<MergeOwner::Step>& steps) {
    const Votes& votes = votes_of(settings_);
    for (auto* statistics : {&statistics_, &deviations_})
      for (size_t k = 0; !statistics->empty() && k < steps.size(); ++k)
        (*statistics)[owner]->merge(steps[k].from, steps[k].into,
                                    votes.weight(steps[k].entries_from),
                                    votes.weight(steps[k].entries_into));
  }
  void erase(size_t owner, std::span<const int64_t> slots) {
    for (auto* statistics : {&statistics_, &deviations_})
      if (!statistics->empty()) (*statistics)[owner]->erase(slots);
    if (!remembered_.empty()) erase_rows(remembered_[owner], 1, slots);
    weights_.erase(owner, slots);
  }

  /// One score for what all owners hold of an entry, where some leave: they hold the same entries.
  void unite() {
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
  const std::vector<double>& of(size_t owner) { return united_ ? scores_[owner] : score(owner); }
  /// Deviations of the rows, whose largest stay (RoCo); null: not kept.
  const SlotStatistic* deviations(size_t owner) const {
    return deviations_.empty() ? nullptr : deviations_[owner].get();
  }
  SlotWeights& weights() { return weights_; }
  /// Slots that leave an owner that is over its budget and its buffer, ascending.
  std::vector<int64_t> leaving(size_t owner) {
    const SlotCache& cache = owners_[owner];
    const int64_t b = kept_.places[owner];
    const int64_t buffer = settings_.share(keys::buffer, b);
    if (cache.size() <= b + buffer) return {};
    const int64_t batch = std::max(buffer + 1, settings_.share(keys::evict_batch, b));
    const bool in_blocks = settings_.count(keys::block) > 1;
    if (batch == 1 && !deviations(owner) && !in_blocks)
      if (const int64_t slot = lowest(owner); slot >= 0) return {slot};
    std::vector<int64_t> open;
    open.reserve(cache.size());
    for (int64_t s = 0; s < cache.size(); ++s)
      if (!protection_.holds(owner, owners_[owner], s)) open.push_back(s);
    leave_out_deviating(owner, open);
    if (open.empty()) {  // the oldest that is no sink, or of the sinks the newest
      int64_t oldest = 0;
      while (oldest + 1 < cache.size() && cache.position(oldest) < protection_.first_open())
        ++oldest;
      return {oldest};
    }
    if (in_blocks)
      if (auto leaving = lowest_blocks(owner, open, batch); !leaving.empty()) return leaving;
    const auto count = std::min<int64_t>(batch, std::ssize(open));
    const std::vector<double>& score = of(owner);
    const auto goes_first = [&](int64_t x, int64_t y) {
      const double a = score[x], c = score[y];
      return a != c ? a < c : x < y;
    };
    std::ranges::partial_sort(open, open.begin() + count, goes_first);
    open.resize(count);
    std::ranges::sort(open);
    return open;
  }

 private:
  /// The slot of lowest score that nothing protects, the oldest of equals; -1 where all are
  /// protected.
  int64_t lowest(size_t owner) {
    const int64_t end = owners_[owner].size() - protection_.newest(owner);
    const std::vector<double>& score = of(owner);
    int64_t lowest = -1;
    for (int64_t s = 0; s < end; ++s)
      if ((lowest < 0 || score[s] < score[lowest]) && !protection_.holds(owner, owners_[owner], s))
        lowest = s;
    return lowest;
  }
  /// Whole blocks of lowest score, the older of equals, until `least` slots have left; none where
  /// every block is protected or goes on behind the newest slot.
  std::vector<int64_t> lowest_blocks(size_t owner, const std::vector<int64_t>& open,
                                     int64_t least) {
    const SlotCache& cache = owners_[owner];
    const int64_t size = settings_.count(keys::block);
    const std::vector<double>& score = of(owner);
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
  /// Of the slots that nothing protects those of largest deviation stay, too (RoCo).
  void leave_out_deviating(size_t owner, std::vector<int64_t>& open) const {
    const SlotStatistic* const deviation = deviations(owner);
    if (!deviation) return;
    const int64_t b = kept_.places[owner];
    const int64_t spread = settings_.decimal(keys::std_keep).floor_times(b) -
                           newest_protected(settings_, work_.layer(), b);
    const auto count = std::clamp<int64_t>(spread, 0, std::ssize(open));
    std::ranges::sort(open, [&](int64_t a, int64_t c) {
      const double x = deviation->score(a), y = deviation->score(c);
      return x != y ? x > y : a > c;
    });
    open.erase(open.begin(), open.begin() + count);
  }
  /// Rows are grouped before they enter a statistic: [1][slots], or [heads][slots] for the layer's
  /// mean.
  Table<double> grouped_rows(size_t owner, const OwnerAttention& attention) const {
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
  void add_row(size_t owner, std::span<const double> row) {
    for (auto* statistics : {&statistics_, &deviations_})
      if (!statistics->empty()) (*statistics)[owner]->add_row(row, owners_[owner].size());
  }
  /// One for each owner, where the indicator looks at queries; they see those of the prompt.
  void follow_queries() {
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
  void remember(const std::vector<std::vector<int64_t>>& evicted) {
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
  /// The larger of now and before, or what the kind of memory makes of both; remembered from now
  /// on.
  void recall(size_t owner, std::span<double> scores) {
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
  void score_by_queries(size_t owner, std::vector<double>& scores) const {
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
  void smooth(std::span<double> scores) const {
    const auto& kind = chosen<Smooth>(settings_);
    if (kind.changes_nothing()) return;
    const std::vector<double> before(scores.begin(), scores.end());
    kind.apply(settings_, PositionDrift(0), before, scores);
  }
  /// Smoothed over the neighbouring slots, joined with what was said before, and lowered by what
  /// the other slots say, too.
  void pool(size_t owner, std::vector<double>& scores) {
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
  const std::vector<double>& score(size_t owner) {
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

  const LayerWork& work_;
  const std::vector<SlotCache>& owners_;
  const KeptSets& kept_;
  const Settings& settings_;
  uint64_t seed_;
  const SlotProtection& protection_;
  const ScoresSlotRows* of_rows_;  ///< what the indicator can; null: it cannot
  const ScoresSlots* of_slots_;
  const FollowsQueries* of_queries_;
  std::vector<std::unique_ptr<SlotStatistic>> statistics_;  ///< per owner, or empty
  std::vector<std::unique_ptr<SlotStatistic>> deviations_;
  std::vector<std::unique_ptr<SlotScorer>> scorers_;
  std::vector<std::vector<double>> remembered_;  ///< score of each slot before, NaN: none; or empty
  std::vector<double> by_position_;              ///< [N] of a layer's row, or empty
  std::vector<std::vector<double>> scores_;      ///< per owner, those asked for last
  bool united_ = false;                          ///< they are those of all owners together
  SlotWeights weights_;
};

}  // namespace kvsim
