#include "sim/policy/scoring.hpp"

#include <fmt/format.h>

namespace kvsim {
namespace {

/// Mean attention of each owner over J, and the layer's attention on the last candidates and on
/// the window: what stage1=mass asks for (policies.md 6).
class MassConsumer : public RowConsumer {
 public:
  MassConsumer(LayerWork& work, const Segment& segment, bool looks_ahead, bool per_query_head,
               ScoredLayer& result)
      : RowConsumer(segment, looks_ahead), work_(work), per_query_head_(per_query_head),
        result_(result) {
    const int64_t owners = per_query_head ? work.query_heads() : work.kv_heads();
    result_.mass = Table<double>(owners, work.entries());
  }
  void start(const AttentionBlock&, int64_t) override {}
  void run(const AttentionBlock& block, int64_t, int) override {
    const Segment& s = segment();
    const auto rows = static_cast<double>(s.own_rows());
    const double per_owner = rows * (per_query_head_ ? 1 : block.heads);
    const double per_layer = rows * work_.query_heads();
    const Range before{std::max(s.candidates.begin, s.candidates.end - s.window), s.candidates.end};
    for (int head = 0; head < block.heads; ++head) {
      const int64_t owner = per_query_head_ ? block.kv_head * block.heads + head : block.kv_head;
      const auto mass = result_.mass.row(owner);
      for (int64_t r = 0; r < block.rows; ++r) {
        const float* a = block.attention_row(head, r);
        for (int64_t i = s.candidates.begin; i < s.candidates.end; ++i)
          mass[i] += static_cast<double>(a[i]) / per_owner;
        for (int64_t i = before.begin; i < before.end; ++i)
          result_.mass_before_window += static_cast<double>(a[i]) / per_layer;
        for (int64_t i = s.candidates.end; i < s.range.end; ++i)
          result_.mass_of_window += static_cast<double>(a[i]) / per_layer;
      }
    }
  }

 private:
  LayerWork& work_;
  bool per_query_head_;
  ScoredLayer& result_;
};

/// Hands rows, or their sums, to what an allocation watches.
class StatisticConsumer : public RowConsumer {
 public:
  StatisticConsumer(LayerWork& work, const Segment& segment, bool looks_ahead,
                    std::unique_ptr<RowStatistic> statistic)
      : RowConsumer(segment, looks_ahead), work_(work), statistic_(std::move(statistic)) {}
  RowUse use() const override {
    static const SummedRows attention;
    if (!statistic_->takes_sums()) return {};
    return {.terms = &attention,
            .weights = std::vector<double>(static_cast<size_t>(segment().rows()), 1.0)};
  }
  void take_sums(const TakenSums& taken) override {
    const Table<double>& sums = *taken.front();
    for (int64_t head = 0; head < sums.rows(); ++head)
      statistic_->add_sum(sums.row(head).subspan(segment().candidates.begin));
  }
  void start(const AttentionBlock&, int64_t) override {}
  int tasks(const AttentionBlock&) const override { return 0; }
  void run(const AttentionBlock&, int64_t, int) override {}
  void end(const AttentionBlock& block, int64_t first_row) override {
    if (statistic_->takes_sums())
      sum_up(block, first_row);
    else
      statistic_->add(block, first_row, segment().candidates);
  }
  std::vector<double> finish() { return statistic_->finish(); }

 private:
  /// The sums that no kernel makes: those over rows of a probe.
  void sum_up(const AttentionBlock& block, int64_t first_row) {
    const Range candidates = segment().candidates;
    if (first_row == 0) sums_ = Table<double>(block.heads, candidates.size());
    for (int head = 0; head < block.heads; ++head)
      for (int64_t r = 0; r < block.rows; ++r) {
        const float* a = block.attention_row(head, r) + candidates.begin;
        for (double& sum : sums_.row(head)) sum += static_cast<double>(*a++);
      }
    if (first_row + block.rows < segment().own_rows()) return;
    for (int head = 0; head < block.heads; ++head) statistic_->add_sum(sums_.row(head));
  }

  LayerWork& work_;
  std::unique_ptr<RowStatistic> statistic_;
  Table<double> sums_;  // [heads of the group][candidates], where rows of a probe are shown
};

using GroupedScores = std::vector<Table<double>>;  // per variant [owners][n]

/// A plan at work: grouped scores, and what was observed beside them.
struct PlanAtWork {
  const ScorePlan* plan = nullptr;
  std::shared_ptr<GroupedScores> grouped = {};  // plans that differ in later stages have the same
  bool makes_scores = true;                     // or finds those of another plan
  ScoredLayer observed = {};  // mass, deviation, statistic; shared by the variants
  std::vector<std::unique_ptr<RowConsumer>> consumers = {};
  std::vector<StatisticConsumer*> statistics = {};
  std::optional<Table<double>> factor = {};  // what scores are multiplied with

  const Settings& settings() const { return plan->settings; }
  bool of_query_heads() const { return per_query_head(settings()); }
  int64_t owners(const LayerWork& work) const {
    return of_query_heads() ? work.query_heads() : work.kv_heads();
  }
  template <class Stage>
  const Stage& stage() const {
    return chosen<Stage>(settings());
  }
};

std::span<double> part_of(std::span<double> row, Range candidates) {
  return row.subspan(candidates.begin, candidates.size());
}

void smooth_rows(const Settings& settings, Range columns, Table<double>& rows) {
  const auto& smooth = chosen<Smooth>(settings);
  for (int64_t r = 0; r < rows.rows() && !smooth.changes_nothing(); ++r) {
    const auto row = part_of(rows.row(r), columns);
    const std::vector<double> before(row.begin(), row.end());
    smooth.apply(settings, PositionDrift(0), before, row);
  }
}

/// Rows of query heads -> rows of what owns them; one for the whole layer where it is one unit.
Table<double> group_rows(const HeadGrouping& heads, const LayerWork& work,
                         const Table<double>& rows) {
  Table<double> grouped(heads.whole_layer() ? 1 : work.kv_heads(), rows.columns());
  for (int h = 0; h < work.query_heads(); ++h) {
    const int kv_head = h / work.group_size();
    heads.add(kv_head, h % work.group_size(), rows.row(h),
              grouped.row(heads.whole_layer() ? 0 : kv_head));
  }
  return grouped;
}

/// Scores of an indicator for all observing queries at once; smoothed and grouped: [owners][n].
Table<double> score_observed(const EntryRequest& request, const PlanAtWork& scoring) {
  const auto& indicator = dynamic_cast<const ObservedIndicator&>(scoring.stage<Indicator>());
  const HeadGrouping heads(request.work, scoring.settings());
  Table<double> scores(request.owners(), request.work.entries());
  for (const Segment& segment : scoring.plan->segments) {
    if (segment.positions.empty() || segment.candidates.size() == 0) continue;
    Table<double> rows = indicator.observed(request, segment);
    for (const char step : scoring.plan->steps) {
      if (step == ScoringStep::smooth) smooth_rows(scoring.settings(), {0, rows.columns()}, rows);
      if (step == ScoringStep::group && heads.combines())
        rows = group_rows(heads, request.work, rows);
    }
    const int64_t sharing = scores.rows() / rows.rows();
    for (int64_t owner = 0; owner < scores.rows(); ++owner)
      std::ranges::copy(rows.row(owner / sharing),
                        scores.row(owner).begin() + segment.candidates.begin);
  }
  return scores;
}

void score_entries(LayerWork& work, const SideFiles& files, uint64_t seed, PlanAtWork& scoring) {
  const EntryRequest request{.work = work,
                             .settings = scoring.settings(),
                             .files = files,
                             .seed = seed,
                             .dropped = scoring.plan->dropped,
                             .per_query_head = scoring.of_query_heads()};
  if (scores_queries(scoring.settings())) {
    scoring.grouped->assign(1, score_observed(request, scoring));
    return;
  }
  Table<double> scores =
      dynamic_cast<const EntryIndicator&>(scoring.stage<Indicator>()).entries(request);
  for (const Segment& segment : scoring.plan->segments)
    smooth_rows(scoring.settings(), segment.candidates, scores);
  scoring.grouped->assign(1, std::move(scores));
}

void add_consumers(LayerWork& work, RowsOfLayer& rows, PlanAtWork& scoring) {
  const ScorePlan& plan = *scoring.plan;
  const bool ahead = plan.looks_ahead();
  if (plan.wants_deviation)
    scoring.observed.deviation = Table<double>(scoring.owners(work), work.entries());
  for (const Segment& segment : plan.segments) {
    if (segment.own_rows() == 0) continue;
    if (scores_rows(plan.settings) && scoring.makes_scores)
      scoring.consumers.push_back(segment_scorer(work, plan, segment, rows, *scoring.grouped));
    if (plan.wants_mass)
      scoring.consumers.push_back(std::make_unique<MassConsumer>(
          work, segment, ahead, scoring.of_query_heads(), scoring.observed));
    if (plan.wants_deviation)
      scoring.consumers.push_back(
          deviation_consumer(work, plan.settings, segment, scoring.observed.deviation));
    if (!plan.wants_statistic) continue;
    auto watcher = std::make_unique<StatisticConsumer>(
        work, segment, ahead,
        scoring.stage<Allocate>().statistic(plan.settings, work.info(), segment.own_rows(),
                                            segment.candidates));
    scoring.statistics.push_back(watcher.get());
    scoring.consumers.push_back(std::move(watcher));
  }
}

PlanAtWork start(LayerWork& work, const SideFiles& files, uint64_t seed, const ScorePlan& plan,
                 std::shared_ptr<GroupedScores>& grouped) {
  PlanAtWork scoring{.plan = &plan, .makes_scores = grouped == nullptr};
  if (!grouped) grouped = std::make_shared<GroupedScores>();
  scoring.grouped = grouped;
  if (plan.wants_token_class)
    scoring.observed.token_class = token_classes(files.token_text(), work.entries());
  if (!scoring.makes_scores) return scoring;
  if (!scores_rows(plan.settings)) {
    score_entries(work, files, seed, scoring);
  } else {
    grouped->resize(plan.free_slots.size());
    parallel_for(std::ssize(*grouped), [&](int64_t variant) {  // memory is new: it costs
      (*grouped)[variant] = Table<double>(scoring.owners(work), work.entries());
    });
  }
  return scoring;
}

void check_finite(const Table<double>& scores, int layer, const ScorePlan& plan) {
  for (int64_t owner = 0; owner < scores.rows(); ++owner)
    for (const Segment& segment : plan.segments)
      for (int64_t i = segment.candidates.begin; i < segment.candidates.end; ++i)
        if (std::isnan(scores(owner, i)))
          bad_data({"a score is not a number",
                    fmt::format("layer {}, head {}, entry {}, stage indicator={}", layer, owner, i,
                                chosen<Indicator>(plan.settings).info().name),
                    "NaN", "a number"});
}

/// Factors of scores: w over the sum that `normalize` names. The quotient is taken
/// first, so that w over itself is 1 and scores that a prior made equal stay equal.
Table<double> factors(LayerWork& work, const PlanAtWork& scoring) {
  const auto& weight = scoring.stage<Weight>();
  Table<double> weights = weight.weights(work, scoring.of_query_heads());
  for (const Segment& segment : scoring.plan->segments) weight.settle(segment.candidates, weights);
  Table<double> shares = weights;
  for (const Segment& segment : scoring.plan->segments)
    scoring.stage<Normalize>().apply(weights, segment.candidates, shares);
  return shares;
}

/// Scores on the scale on which later compressions remember them.
void level_scores(const PlanAtWork& scoring, Table<double>& scores) {
  const auto& memory = scoring.stage<Memory>();
  if (memory.changes_nothing()) return;
  for (int64_t owner = 0; owner < scores.rows(); ++owner)
    for (const Segment& segment : scoring.plan->segments)
      memory.level(part_of(scores.row(owner), segment.candidates));
}

/// Scores mixed with what the other entries of the whole prompt say, too.
void lower_redundant(const LayerWork& work, const PlanAtWork& scoring, Table<double>& scores) {
  const auto& redundancy = scoring.stage<Redundancy>();
  if (redundancy.changes_nothing()) return;
  const int64_t n = work.entries(), sharing = scores.rows() / work.kv_heads();
  const Tensor& k = work.trace().k;
  parallel_for(work.kv_heads(), [&](int64_t kv) {
    std::vector<float> keys(n * k.dim(2));
    k.read(kv, 0, n, keys.data());
    std::vector<double> said = redundancy.of_keys(scoring.settings(), keys, k.dim(2));
    for (const Segment& segment : scoring.plan->segments)
      redundancy.level(part_of(said, segment.candidates));
    for (int64_t owner = kv * sharing; owner < (kv + 1) * sharing; ++owner)
      for (const Segment& segment : scoring.plan->segments)
        for (int64_t i = segment.candidates.begin; i < segment.candidates.end; ++i)
          scores(owner, i) = redundancy.mix(scoring.settings(), scores(owner, i), said[i]);
  });
}

/// prior, weight and normalize; inside each segment.
void finish_scores(const PlanAtWork& scoring, const Table<double>* factor, bool with_prior,
                   Table<double>* unweighted, Table<double>& scores) {
  const Settings& settings = scoring.settings();
  const auto& prior = scoring.stage<Prior>();
  const double epsilon = settings.real(keys::weight_epsilon);
  for (const Segment& segment : scoring.plan->segments)
    for (int64_t owner = 0; owner < scores.rows() && with_prior; ++owner)
      prior.apply(settings, part_of(scores.row(owner), segment.candidates));
  if (unweighted) *unweighted = scores;
  if (!factor) return;
  for (const Segment& segment : scoring.plan->segments)
    for (int64_t owner = 0; owner < scores.rows(); ++owner)
      for (int64_t i = segment.candidates.begin; i < segment.candidates.end; ++i)
        scores(owner, i) = (scores(owner, i) + epsilon) * (*factor)(owner, i);
  for (const Segment& segment : scoring.plan->segments)
    scoring.stage<Normalize>().finish(segment.candidates, scores);
}

/// One score for what stays or goes together: entries of all owners, entries of a block.
void shape_scores(const PlanAtWork& scoring, ScoredLayer& layer) {
  for (Table<double>* scores :
       {&layer.score, &layer.raw, &layer.unweighted, &layer.unweighted_raw}) {
    if (scores->empty()) continue;
    for (const Segment& segment : scoring.plan->segments) {
      if (scoring.stage<Union>().unites())
        scoring.stage<Union>().apply(segment.candidates, *scores);
      score_blocks(scoring.settings(), segment.candidates, *scores);
    }
  }
}

/// 1 / sqrt(mean of 1 / r^2) over the stored queries of the prompt, r the norm of the residual
/// stream there: errors count by 1 / r^2, and a first token of huge norm counts for nothing. 0
/// without norms.
double stream_norm(const LayerWork& work) {
  const auto& norms = work.trace().residual_norm;
  const auto& positions = work.info().query_position;
  double sum = 0;
  int64_t count = 0;
  for (size_t r = 0; r < norms.size() && positions[r] < work.entries(); ++r, ++count)
    sum += 1 / (static_cast<double>(norms[r]) * static_cast<double>(norms[r]));
  return count > 0 ? std::sqrt(static_cast<double>(count) / sum) : 0;
}

std::shared_ptr<ScoredLayer> finish_variant(const LayerWork& work, const PlanAtWork& scoring,
                                            Table<double> grouped) {
  const ScorePlan& plan = *scoring.plan;
  const Table<double>* const factor = scoring.factor ? &*scoring.factor : nullptr;
  auto layer = std::make_shared<ScoredLayer>(scoring.observed);
  layer->layer = work.layer();
  layer->stream_norm = stream_norm(work);
  layer->segments = plan.segments;
  layer->candidate.assign(work.entries(), 0);
  for (const Segment& segment : plan.segments)
    for (int64_t i = segment.candidates.begin; i < segment.candidates.end; ++i)
      layer->candidate[i] = 1;
  layer->score = std::move(grouped);
  check_finite(layer->score, work.layer(), plan);
  level_scores(scoring, layer->score);
  lower_redundant(work, scoring, layer->score);
  const bool has_prior = !scoring.stage<Prior>().changes_nothing();
  if (has_prior) {
    layer->raw = layer->score;
    finish_scores(scoring, factor, false, plan.wants_unweighted ? &layer->unweighted_raw : nullptr,
                  layer->raw);
  }
  finish_scores(scoring, factor, true, plan.wants_unweighted ? &layer->unweighted : nullptr,
                layer->score);
  check_finite(layer->score, work.layer(), plan);
  shape_scores(scoring, *layer);
  return layer;
}

/// Numbers that were watched, of all segments together, and the factor of the scores.
void finish_statistics(LayerWork& work, PlanAtWork& scoring) {
  for (StatisticConsumer* watcher : scoring.statistics) {
    const std::vector<double> seen = watcher->finish();
    auto& total = scoring.observed.statistic;
    total.resize(seen.size(), 0.0);
    for (size_t k = 0; k < seen.size(); ++k) total[k] += seen[k];
  }
  if (!scoring.stage<Weight>().changes_nothing() || !scoring.stage<Normalize>().changes_nothing())
    scoring.factor = factors(work, scoring);
}

}  // namespace

std::vector<std::vector<std::shared_ptr<ScoredLayer>>> score_layer(
    LayerWork& work, const SideFiles& files, uint64_t seed,
    const std::vector<const ScorePlan*>& plans) {
  std::vector<PlanAtWork> scorings;
  scorings.reserve(plans.size());  // consumers keep pointers into theirs
  std::vector<RowConsumer*> consumers;
  RowsOfLayer rows(work);
  std::map<std::string, std::shared_ptr<GroupedScores>> grouped;
  for (const ScorePlan* plan : plans) {
    PlanAtWork& scoring = scorings.emplace_back(
        start(work, files, seed, *plan, grouped[plan->grouping_key()]));
    add_consumers(work, rows, scoring);
    for (const auto& consumer : scoring.consumers) consumers.push_back(consumer.get());
  }
  run_consumers(work, consumers);
  work.drop_output_metrics();
  grouped.clear();
  std::vector<std::vector<std::shared_ptr<ScoredLayer>>> results(plans.size());
  std::vector<std::pair<size_t, size_t>> unfinished;  // plan and variant
  for (size_t p = 0; p < plans.size(); ++p) {
    finish_statistics(work, scorings[p]);
    results[p].resize(plans[p]->free_slots.size());
    for (size_t variant = 0; variant < results[p].size(); ++variant)
      unfinished.emplace_back(p, variant);
  }
  parallel_for(std::ssize(unfinished), [&](int64_t at) {
    const auto [p, variant] = unfinished[at];
    PlanAtWork& scoring = scorings[p];
    // Scores that do not depend on the variant are there once.
    GroupedScores& scores = *scoring.grouped;
    if (scores.size() == results[p].size() && scoring.grouped.use_count() == 1)
      results[p][variant] = finish_variant(work, scoring, std::move(scores[variant]));
    else
      results[p][variant] = finish_variant(work, scoring, scores[scores.size() == 1 ? 0 : variant]);
  });
  return results;
}

}  // namespace kvsim
