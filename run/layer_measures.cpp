#include "run/layer_measures.hpp"

#include <algorithm>
#include <chrono>
#include <limits>

#include "analysis/retained.hpp"
#include "sim/core/parallel.hpp"

namespace kvsim {
namespace {

constexpr double kUndefined = std::numeric_limits<double>::quiet_NaN();

/// Sum over query heads at each step.
std::vector<double> pooled(const Table<double>& heads) {
  std::vector<double> sum(static_cast<size_t>(heads.columns()), 0.0);
  for (int64_t h = 0; h < heads.rows(); ++h) {
    const auto row = heads.row(h);
    for (size_t s = 0; s < sum.size(); ++s) sum[s] += row[s];
  }
  return sum;
}

std::span<double> part(std::vector<double>& series, int64_t first, int64_t steps) {
  return std::span(series).subspan(static_cast<size_t>(first), static_cast<size_t>(steps));
}
std::span<double> part(Table<double>& table, int64_t row, int64_t first, int64_t steps) {
  return table.row(row).subspan(static_cast<size_t>(first), static_cast<size_t>(steps));
}

}  // namespace

LayerMeasures::LayerMeasures(LayerWork& work, size_t outcomes, Options options)
    : work_(work), options_(std::move(options)),
      projection_(work.backend().projection(work.trace())) {
  const int64_t steps = work.info().steps();
  const std::vector<double> series(static_cast<size_t>(steps), kUndefined);
  const Table<double> heads = options_.per_head
                                  ? Table<double>(work.query_heads(), steps, kUndefined)
                                  : Table<double>();
  StepSeries fresh;
  fresh.importance = fresh.attention = fresh.error = series;
  fresh.parts = Table<double>(options_.parts, steps, kUndefined);
  fresh.importance_head = fresh.attention_head = fresh.error_head = heads;
  if (options_.merges) {
    fresh.represented = fresh.dropped = fresh.sag = fresh.shift = fresh.defect = series;
  }
  if (options_.slot_changes) fresh.value_part = fresh.mass_part = series;
  if (options_.rounding) fresh.rounding = series;
  outcomes_.assign(outcomes, fresh);
  full_ = {series, heads, series, series};
}

void LayerMeasures::add(const StepBlock& block) {
  if (block.full != nullptr) add_full(*block.full);
  parallel_for(std::ssize(block.outcomes), [&](int64_t at) {   // each writes to its own series
    const OutcomeBlock& view = block.outcomes[static_cast<size_t>(at)];
    if (view.kept_attention != nullptr) add_shares(view, block.first_step, block.steps);
    if (options_.merges) add_merges(view, block.first_step, block.steps);
  });
  const auto begin = std::chrono::steady_clock::now();
  add_errors(block);
  projection_seconds_ +=
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

void LayerMeasures::add_full(const ReplayBlock& block) {
  const std::vector<double> prompt = pooled(block.prompt_importance);
  const std::vector<double> later = pooled(block.later_importance);
  for (size_t s = 0; s < prompt.size(); ++s) {
    const auto at = static_cast<size_t>(block.first_step) + s;
    const double counted = options_.scope == Scope::all ? later[s] : 0.0;
    full_.importance[at] = prompt[s] + counted;
    full_.later_share[at] = counted == 0 ? 0.0 : counted / full_.importance[at];
  }
}

void LayerMeasures::add_shares(const OutcomeBlock& view, int64_t first, int64_t steps) {
  StepSeries& series = outcomes_[static_cast<size_t>(view.outcome)];
  retained_pooled(*view.kept_importance, *view.total_importance,
                  part(series.importance, first, steps));
  retained_pooled(*view.kept_attention, *view.total_attention,
                  part(series.attention, first, steps));
  for (int64_t p = 0; view.part_kept != nullptr && p < options_.parts; ++p)
    for (int64_t s = 0; s < steps; ++s)
      series.parts(p, first + s) =
          retained_share((*view.part_kept)(p, s), (*view.part_total)(p, s));
  if (view.kept_squares != nullptr) add_moments(view, first);
  if (!options_.per_head) return;
  for (int h = 0; h < work_.query_heads(); ++h) {
    retained_of_head(*view.kept_importance, *view.total_importance, h,
                     part(series.importance_head, h, first, steps));
    retained_of_head(*view.kept_attention, *view.total_attention, h,
                     part(series.attention_head, h, first, steps));
  }
}

void LayerMeasures::add_moments(const OutcomeBlock& view, int64_t first) {
  StepSeries& series = outcomes_[static_cast<size_t>(view.outcome)];
  const auto all_steps = static_cast<size_t>(work_.info().steps());
  const auto fill = [&](std::vector<Moments>& moments, const Table<double>& sums,
                        const Table<double>& squares) {
    moments.resize(all_steps);
    const std::vector<double> sum = pooled(sums), square = pooled(squares);
    for (size_t s = 0; s < sum.size(); ++s)
      moments[static_cast<size_t>(first) + s] = {sum[s], square[s]};
  };
  fill(series.kept_moments, *view.kept_importance, *view.kept_squares);
  if (view.total_squares == nullptr) return;
  fill(series.all_moments, *view.total_importance, *view.total_squares);
  series.entries.resize(all_steps);
  std::ranges::copy(*view.entries, series.entries.begin() + first);
}

void LayerMeasures::add_merges(const OutcomeBlock& view, int64_t first, int64_t steps) {
  StepSeries& series = outcomes_[static_cast<size_t>(view.outcome)];
  const MergeTally* const merges = view.merges;
  if (view.kept_attention != nullptr) {   // undefined with positions=cache
    std::vector<double> kept = pooled(*view.kept_importance);
    std::vector<double> dropped = pooled(*view.total_attention);
    const std::vector<double> total = pooled(*view.total_importance);
    const std::vector<double> present = pooled(*view.kept_attention);
    std::vector<double> of_members(kept.size(), 0.0);
    if (merges != nullptr) {
      of_members = pooled(merges->member_attention());
      const std::vector<double> gain = pooled(merges->member_importance());
      for (size_t s = 0; s < kept.size(); ++s) kept[s] += gain[s];
    }
    for (size_t s = 0; s < kept.size(); ++s) {
      const auto at = static_cast<size_t>(first) + s;
      series.represented[at] = retained_share(kept[s], total[s]);
      series.dropped[at] = std::max(0.0, dropped[s] - present[s] - of_members[s]) /
                           static_cast<double>(work_.query_heads());
    }
  }
  for (int64_t s = 0; s < steps; ++s) {
    const auto at = static_cast<size_t>(first + s);
    series.sag[at] = merges != nullptr ? merges->sag(s) : 0;
    series.shift[at] = merges != nullptr ? merges->shift(s) : 0;
    series.defect[at] = merges != nullptr ? merges->defect(s) : kUndefined;
    if (!options_.slot_changes || merges == nullptr) continue;
    series.value_part[at] = merges->value_part(s);
    series.mass_part[at] = merges->mass_part(s);
  }
  if (merges == nullptr) return;
  const std::vector<double> defects = merges->defects();
  series.defects.insert(series.defects.end(), defects.begin(), defects.end());
}

void LayerMeasures::add_errors(const StepBlock& block) {
  // All vectors of the block go through W_O at once: z first when it is here, then the deltas.
  std::vector<const float*> inputs;
  std::vector<std::vector<double>*> outputs;
  if (block.full != nullptr) {
    inputs.push_back(block.full->z.data());
    outputs.push_back(&full_.output);
  }
  for (const OutcomeBlock& view : block.outcomes) {
    StepSeries& series = outcomes_[static_cast<size_t>(view.outcome)];
    if (view.delta == nullptr) continue;
    inputs.push_back(view.delta);
    outputs.push_back(&series.error);
  }
  const OutputSteps there = projected(block);
  for (const OutcomeBlock& view : block.outcomes) {
    if (view.delta != nullptr) continue;
    StepSeries& series = outcomes_[static_cast<size_t>(view.outcome)];
    for (const int64_t step : there.steps) series.error[static_cast<size_t>(step)] = 0;
  }
  if (!there.steps.empty() && !inputs.empty()) {
    std::vector<double> norms(inputs.size() * there.steps.size());
    projection_->norms(inputs, there.stride, there.rows, norms.data());
    for (size_t x = 0; x < inputs.size(); ++x)
      for (size_t k = 0; k < there.steps.size(); ++k)
        (*outputs[x])[static_cast<size_t>(there.steps[k])] = norms[x * there.steps.size() + k];
  }
  if (options_.rounding) add_rounding(block, there);
  if (options_.per_head) add_head_errors(block, inputs);
}

/// The projected steps of a block, and which of its outputs are theirs.
LayerMeasures::OutputSteps LayerMeasures::projected(const StepBlock& block) const {
  OutputSteps there;
  const int64_t stride = block.output_steps ? static_cast<int64_t>(block.output_steps->size())
                                            : block.steps;
  there.stride = stride;
  for (int64_t row = 0; row < stride; ++row) {
    const int64_t step = block.output_steps ? (*block.output_steps)[static_cast<size_t>(row)]
                                            : block.first_step + row;
    if (!std::ranges::binary_search(options_.projected_steps, step)) continue;
    there.rows.push_back(row);
    there.steps.push_back(step);
  }
  return there;
}

void LayerMeasures::add_rounding(const StepBlock& block, const OutputSteps& there) {
  for (const OutcomeBlock& view : block.outcomes) {
    std::vector<double> norms(there.steps.size(), 0.0);
    if (view.rounding != nullptr && !there.steps.empty())
      projection_->norms(std::vector<const float*>{view.rounding}, there.stride, there.rows,
                         norms.data());
    std::vector<double>& rounding = outcomes_[static_cast<size_t>(view.outcome)].rounding;
    for (size_t k = 0; k < there.steps.size(); ++k)
      rounding[static_cast<size_t>(there.steps[k])] = norms[k];
  }
}

void LayerMeasures::add_head_errors(const StepBlock& block,
                                    const std::vector<const float*>& inputs) {
  std::vector<Table<double>*> outputs;
  if (block.full != nullptr) outputs.push_back(&full_.output_head);
  for (const OutcomeBlock& view : block.outcomes) {
    Table<double>& error = outcomes_[static_cast<size_t>(view.outcome)].error_head;
    if (view.delta != nullptr) {
      outputs.push_back(&error);
      continue;
    }
    for (int64_t h = 0; h < error.rows(); ++h) {
      std::ranges::fill(part(error, h, block.first_step, block.steps), 0.0);
    }
  }
  if (inputs.empty()) return;
  const auto heads = static_cast<size_t>(work_.query_heads());
  const auto steps = static_cast<size_t>(block.steps);
  std::vector<double> norms(inputs.size() * heads * steps);
  projection_->head_norms(inputs, block.steps, norms.data());
  for (size_t x = 0; x < inputs.size(); ++x) {
    for (size_t h = 0; h < heads; ++h) {
      std::copy_n(norms.begin() + static_cast<int64_t>((x * heads + h) * steps), steps,
                  part(*outputs[x], static_cast<int64_t>(h), block.first_step,
                       block.steps).begin());
    }
  }
}

}  // namespace kvsim
