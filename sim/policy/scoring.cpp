#include "sim/policy/scoring.hpp"

#include <fmt/format.h>

#include <cmath>
#include <optional>
#include <utility>

#include "sim/core/error.hpp"
#include "sim/core/parallel.hpp"
#include "sim/policy/segment_scorer.hpp"
#include "sim/policy/statistics_consumers.hpp"
#include "sim/stages/allocate/allocate.hpp"
#include "sim/stages/normalize/normalize.hpp"
#include "sim/stages/prior/prior.hpp"
#include "sim/stages/protect/stage1.hpp"
#include "sim/stages/protect/token_classes.hpp"
#include "sim/stages/queries/queries.hpp"
#include "sim/stages/weight/weight.hpp"

namespace kvsim {
namespace {

/// A job at work: grouped scores per variant, and what was observed beside them.
struct Scoring {
  ScoreJob* job = nullptr;
  std::vector<Table<double>> grouped;  // per variant [owners][n]
  ScoredLayer observed;                // mass, deviation and statistic; shared by the variants
  std::vector<std::unique_ptr<RowConsumer>> consumers;
  std::vector<StatisticConsumer*> statistics;
  std::optional<Table<double>> factor;  // what scores are multiplied with

  const Settings& settings() const { return *job->settings; }
  bool per_query_head() const { return settings().is("granularity", "query"); }
};

template <class Stage>
const Stage& stage(const Scoring& scoring, const char* name) {
  return Kinds<Stage>::find(scoring.settings().text(name));
}

void score_entries(LayerWork& work, const SideFiles& files, uint64_t seed, Scoring& scoring) {
  const auto& smooth = stage<Smooth>(scoring, "smooth");
  const EntryRequest request{.work = work,
                             .settings = scoring.settings(),
                             .files = files,
                             .seed = seed,
                             .per_query_head = scoring.per_query_head()};
  Table<double> scores = stage<Indicator>(scoring, "indicator").entries(request);
  for (const Segment& segment : scoring.job->segments) {
    if (smooth.changes_nothing()) break;
    const auto begin = static_cast<size_t>(segment.candidates.begin);
    const auto size = static_cast<size_t>(segment.candidates.size());
    for (int64_t owner = 0; owner < scores.rows(); ++owner) {
      const auto row = scores.row(owner).subspan(begin, size);
      const std::vector<double> before(row.begin(), row.end());
      smooth.apply(scoring.settings(), PositionDrift(0), before, row);
    }
  }
  scoring.grouped.assign(1, std::move(scores));
}

void add_consumers(LayerWork& work, RowsOfLayer& rows, Scoring& scoring) {
  const Settings& settings = scoring.settings();
  const int64_t owners = scoring.per_query_head() ? work.query_heads() : work.kv_heads();
  if (settings.real("std_keep") > 0)
    scoring.observed.deviation = Table<double>(owners, work.entries());
  const auto& allocate = stage<Allocate>(scoring, "allocate");
  const bool ahead = stage<Queries>(scoring, "queries").looks_ahead();
  for (const Segment& segment : scoring.job->segments) {
    if (segment.positions.empty()) continue;
    if (stage<Indicator>(scoring, "indicator").axes() != Axes::entry)
      scoring.consumers.push_back(
          std::make_unique<SegmentScorer>(work, *scoring.job, segment, rows, scoring.grouped));
    if (stage<Stage1>(scoring, "stage1").uses_mass())
      scoring.consumers.push_back(std::make_unique<MassConsumer>(
          work, segment, ahead, scoring.per_query_head(), scoring.observed));
    if (settings.real("std_keep") > 0)
      scoring.consumers.push_back(
          std::make_unique<DeviationConsumer>(work, settings, segment, scoring.observed.deviation));
    if (!scoring.job->wants_statistic) continue;
    auto watcher = std::make_unique<StatisticConsumer>(
        work, segment, ahead,
        allocate.statistic(settings, work.info(), static_cast<int64_t>(segment.positions.size()),
                           segment.candidates));
    scoring.statistics.push_back(watcher.get());
    scoring.consumers.push_back(std::move(watcher));
  }
}

Scoring prepare(LayerWork& work, const SideFiles& files, uint64_t seed, ScoreJob& job) {
  Scoring scoring{
      .job = &job, .grouped = {}, .observed = {}, .consumers = {}, .statistics = {}, .factor = {}};
  if (stage<Stage1>(scoring, "stage1").uses_token_classes() ||
      stage<Allocate>(scoring, "allocate").uses_token_classes())
    scoring.observed.token_class = token_classes(files.token_text(), work.entries());
  if (stage<Indicator>(scoring, "indicator").axes() == Axes::entry) {
    score_entries(work, files, seed, scoring);
  } else {
    const int64_t owners = scoring.per_query_head() ? work.query_heads() : work.kv_heads();
    scoring.grouped.resize(job.free_slots.size());
    parallel_for(std::ssize(scoring.grouped), [&](int64_t variant) {  // memory is new: it costs
      scoring.grouped[static_cast<size_t>(variant)] = Table<double>(owners, work.entries());
    });
  }
  return scoring;
}

void check_finite(const Table<double>& scores, int layer, const ScoreJob& job) {
  for (int64_t owner = 0; owner < scores.rows(); ++owner)
    for (const Segment& segment : job.segments)
      for (int64_t i = segment.candidates.begin; i < segment.candidates.end; ++i)
        if (std::isnan(scores(owner, i)))
          bad_data({.what = "a score is not a number",
                    .where = fmt::format("layer {}, head {}, entry {}, stage indicator={}", layer,
                                         owner, i, job.settings->text("indicator")),
                    .found = "NaN",
                    .expected = "a number"});
}

/// What scores are multiplied with: w over the sum that `normalize` names. The quotient is taken
/// first, so that w over itself is 1 and scores that a prior made equal stay equal.
Table<double> factors(LayerWork& work, const Scoring& scoring) {
  const Table<double> weights =
      stage<Weight>(scoring, "weight").weights(work, scoring.per_query_head());
  Table<double> shares = weights;
  for (const Segment& segment : scoring.job->segments)
    stage<Normalize>(scoring, "normalize").apply(weights, segment.candidates, shares);
  return shares;
}

/// prior, weight and normalize; inside each segment.
void finish_scores(const Scoring& scoring, const Table<double>* factor, bool with_prior,
                   Table<double>* unweighted, Table<double>& scores) {
  const Settings& settings = scoring.settings();
  const auto& prior = stage<Prior>(scoring, "prior");
  const double epsilon = settings.real("weight_epsilon");
  for (const Segment& segment : scoring.job->segments) {
    const auto begin = static_cast<size_t>(segment.candidates.begin);
    const auto size = static_cast<size_t>(segment.candidates.size());
    for (int64_t owner = 0; owner < scores.rows() && with_prior; ++owner)
      prior.apply(settings, scores.row(owner).subspan(begin, size));
  }
  if (unweighted) *unweighted = scores;
  if (!factor) return;
  for (const Segment& segment : scoring.job->segments)
    for (int64_t owner = 0; owner < scores.rows(); ++owner)
      for (int64_t i = segment.candidates.begin; i < segment.candidates.end; ++i)
        scores(owner, i) = (scores(owner, i) + epsilon) * (*factor)(owner, i);
}

std::shared_ptr<ScoredLayer> finish_variant(const LayerWork& work, const Scoring& scoring,
                                            Table<double> grouped) {
  const ScoreJob& job = *scoring.job;
  const Table<double>* const factor = scoring.factor ? &*scoring.factor : nullptr;
  auto layer = std::make_shared<ScoredLayer>(scoring.observed);
  layer->layer = work.layer();
  layer->segments = job.segments;
  layer->candidate.assign(static_cast<size_t>(work.entries()), 0);
  for (const Segment& segment : job.segments)
    for (int64_t i = segment.candidates.begin; i < segment.candidates.end; ++i)
      layer->candidate[static_cast<size_t>(i)] = 1;
  layer->score = std::move(grouped);
  check_finite(layer->score, work.layer(), job);
  const bool has_prior = !stage<Prior>(scoring, "prior").changes_nothing();
  if (has_prior) {
    layer->raw = layer->score;
    finish_scores(scoring, factor, false, job.wants_unweighted ? &layer->unweighted_raw : nullptr,
                  layer->raw);
  }
  finish_scores(scoring, factor, true, job.wants_unweighted ? &layer->unweighted : nullptr,
                layer->score);
  check_finite(layer->score, work.layer(), job);
  return layer;
}

}  // namespace

void score_layer(LayerWork& work, const SideFiles& files, uint64_t seed,
                 std::span<ScoreJob* const> jobs) {
  std::vector<Scoring> scorings;
  scorings.reserve(jobs.size());  // consumers keep pointers into their scoring
  std::vector<RowConsumer*> consumers;
  RowsOfLayer rows(work);
  for (ScoreJob* job : jobs) {
    Scoring& scoring = scorings.emplace_back(prepare(work, files, seed, *job));
    add_consumers(work, rows, scoring);
    for (const auto& consumer : scoring.consumers) consumers.push_back(consumer.get());
  }
  run_consumers(work, consumers);
  std::vector<std::pair<Scoring*, size_t>> unfinished;  // variants of all
  for (Scoring& scoring : scorings) {
    for (StatisticConsumer* watcher : scoring.statistics) {
      const std::vector<double> seen = watcher->finish();
      auto& total = scoring.observed.statistic;
      total.resize(seen.size(), 0.0);
      for (size_t k = 0; k < seen.size(); ++k) total[k] += seen[k];
    }
    const bool weighted = !stage<Weight>(scoring, "weight").changes_nothing() ||
                          !scoring.settings().is("normalize", "none");
    if (weighted) scoring.factor = factors(work, scoring);
    const size_t variants = scoring.job->free_slots.size();
    scoring.job->results.assign(variants, nullptr);
    for (size_t variant = 0; variant < variants; ++variant)
      unfinished.emplace_back(&scoring, variant);
  }
  parallel_for(std::ssize(unfinished), [&](int64_t at) {
    const auto& [scoring, variant] = unfinished[static_cast<size_t>(at)];
    auto& result = scoring->job->results[variant];
    // Scores that do not depend on the variant are there once.
    if (scoring->grouped.size() == scoring->job->results.size())
      result = finish_variant(work, *scoring, std::move(scoring->grouped[variant]));
    else
      result = finish_variant(work, *scoring, scoring->grouped.front());
  });
}

}  // namespace kvsim
