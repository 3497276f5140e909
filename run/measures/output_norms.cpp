#include "run/measures/output_norms.hpp"

#include <algorithm>
#include <chrono>
#include <limits>

namespace kvsim {
namespace {

constexpr double kUndefined = std::numeric_limits<double>::quiet_NaN();

std::span<double> part(Table<double>& table, int64_t row, int64_t first, int64_t steps) {
  return table.row(row).subspan(static_cast<size_t>(first), static_cast<size_t>(steps));
}

}  // namespace

OutputNorms::OutputNorms(LayerWork& work, size_t outcomes, std::vector<int64_t> steps, bool heads,
                         bool rounding)
    : work_(work), steps_(std::move(steps)), heads_(heads), rounding_(rounding),
      projection_(work.backend().projection(work.trace())) {
  const std::vector<double> series(static_cast<size_t>(work.info().steps()), kUndefined);
  full_ = series;
  if (heads) full_heads_ = Table<double>(work.query_heads(), work.info().steps(), kUndefined);
  outcomes_.assign(outcomes, {series, full_heads_, rounding ? series : std::vector<double>()});
}

void OutputNorms::add(const StepBlock& block) {
  const auto begin = std::chrono::steady_clock::now();
  // All vectors of the block go through W_O at once: z first when it is here, then the deltas.
  std::vector<const float*> inputs;
  if (block.full != nullptr) inputs.push_back(block.full->z.data());
  for (const OutcomeBlock& view : block.outcomes)
    if (view.delta != nullptr) inputs.push_back(view.delta);
  const Projected there = projected(block);
  add_errors(block, inputs, there);
  if (rounding_) add_rounding(block, there);
  if (heads_) add_heads(block, inputs);
  seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

/// The projected steps of a block, and which of its outputs are theirs.
OutputNorms::Projected OutputNorms::projected(const StepBlock& block) const {
  Projected there;
  there.stride = block.output_steps ? static_cast<int64_t>(block.output_steps->size())
                                    : block.steps;
  for (int64_t row = 0; row < there.stride; ++row) {
    const int64_t step = block.output_steps ? (*block.output_steps)[static_cast<size_t>(row)]
                                            : block.first_step + row;
    if (!std::ranges::binary_search(steps_, step)) continue;
    there.rows.push_back(row);
    there.steps.push_back(step);
  }
  return there;
}

void OutputNorms::add_errors(const StepBlock& block, const std::vector<const float*>& inputs,
                             const Projected& there) {
  std::vector<std::vector<double>*> outputs;
  if (block.full != nullptr) outputs.push_back(&full_);
  for (const OutcomeBlock& view : block.outcomes) {
    std::vector<double>& error = of(view).error;
    if (view.delta != nullptr) {
      outputs.push_back(&error);
      continue;
    }
    for (const int64_t step : there.steps) error[static_cast<size_t>(step)] = 0;
  }
  if (there.steps.empty() || inputs.empty()) return;
  std::vector<double> norms(inputs.size() * there.steps.size());
  projection_->norms(inputs, there.stride, there.rows, norms.data());
  for (size_t x = 0; x < inputs.size(); ++x)
    for (size_t k = 0; k < there.steps.size(); ++k)
      (*outputs[x])[static_cast<size_t>(there.steps[k])] = norms[x * there.steps.size() + k];
}

void OutputNorms::add_rounding(const StepBlock& block, const Projected& there) {
  for (const OutcomeBlock& view : block.outcomes) {
    std::vector<double> norms(there.steps.size(), 0.0);
    if (view.rounding != nullptr && !there.steps.empty())
      projection_->norms(std::vector<const float*>{view.rounding}, there.stride, there.rows,
                         norms.data());
    for (size_t k = 0; k < there.steps.size(); ++k)
      of(view).rounding[static_cast<size_t>(there.steps[k])] = norms[k];
  }
}

void OutputNorms::add_heads(const StepBlock& block, const std::vector<const float*>& inputs) {
  std::vector<Table<double>*> outputs;
  if (block.full != nullptr) outputs.push_back(&full_heads_);
  for (const OutcomeBlock& view : block.outcomes) {
    Table<double>& error = of(view).heads;
    if (view.delta != nullptr) {
      outputs.push_back(&error);
      continue;
    }
    for (int64_t h = 0; h < error.rows(); ++h)
      std::ranges::fill(part(error, h, block.first_step, block.steps), 0.0);
  }
  if (inputs.empty()) return;
  const auto heads = static_cast<size_t>(work_.query_heads());
  const auto steps = static_cast<size_t>(block.steps);
  std::vector<double> norms(inputs.size() * heads * steps);
  projection_->head_norms(inputs, block.steps, norms.data());
  for (size_t x = 0; x < inputs.size(); ++x)
    for (size_t h = 0; h < heads; ++h)
      std::copy_n(
          norms.begin() + static_cast<int64_t>((x * heads + h) * steps), steps,
          part(*outputs[x], static_cast<int64_t>(h), block.first_step, block.steps).begin());
}

}  // namespace kvsim
