#include "analysis/output_norms.hpp"

#include <algorithm>
#include <chrono>
#include <numeric>

#include "analysis/undefined.hpp"

namespace kvsim {
namespace {

std::span<double> part(Table<double>& table, int64_t row, int64_t first, int64_t steps) {
  return table.row(row).subspan(static_cast<size_t>(first), static_cast<size_t>(steps));
}

}  // namespace

OutputNorms::OutputNorms(LayerWork& work, size_t outcomes, std::vector<int64_t> steps, bool heads,
                         bool rounding)
    : work_(work), steps_(std::move(steps)), heads_(heads), rounding_(rounding),
      projection_(work.backend().projection(work.trace())) {
  if (work.trace().path.needs_evaluation()) change_ = std::make_unique<StreamChange>(work);
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
  const OutputRows there = projected(block);
  add_errors(block, inputs, there);
  if (rounding_) add_rounding(block, there);
  if (heads_) add_heads(block, inputs);
  seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

/// The projected steps of a block, and which of its outputs are theirs.
OutputRows OutputNorms::projected(const StepBlock& block) const {
  OutputRows there;
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
                             const OutputRows& there) {
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
  const std::vector<double> norms = change_ ? changed_norms(block, there)
                                            : norms_of_rows(inputs, there);
  for (size_t x = 0; x < inputs.size(); ++x)
    for (size_t k = 0; k < there.steps.size(); ++k)
      (*outputs[x])[static_cast<size_t>(there.steps[k])] = norms[x * there.steps.size() + k];
}

/// Norms [inputs][rows] of products with W_O.
std::vector<double> OutputNorms::norms_of_rows(const std::vector<const float*>& inputs,
                                               const OutputRows& there) {
  std::vector<double> norms(inputs.size() * there.rows.size());
  projection_->norms(inputs, there.stride, there.rows, norms.data());
  return norms;
}

/// The same of vectors [Hq][rows][dv] that StreamChange has made.
std::vector<double> OutputNorms::norms_of(const std::vector<std::vector<float>>& vectors,
                                          const OutputRows& there) {
  std::vector<const float*> inputs;
  for (const std::vector<float>& one : vectors) inputs.push_back(one.data());
  OutputRows all{std::ssize(there.rows), there.rows, there.steps};
  std::iota(all.rows.begin(), all.rows.end(), int64_t{0});
  return norms_of_rows(inputs, all);
}

/// What the full cache adds to the stream, when it is here, then what each delta changes of it.
std::vector<double> OutputNorms::changed_norms(const StepBlock& block, const OutputRows& there) {
  std::vector<std::vector<float>> vectors;
  if (block.full != nullptr) vectors.push_back(change_->set_full(block.full->z.data(), there));
  for (const OutcomeBlock& view : block.outcomes)
    if (view.delta != nullptr) vectors.push_back(change_->change(nullptr, view.delta, there));
  return norms_of(vectors, there);
}

/// What rounding adds: from the outputs without it to those with it.
std::vector<double> OutputNorms::rounding_norms(const OutcomeBlock& view, const OutputRows& there) {
  if (!change_) return norms_of_rows({view.rounding}, there);
  std::vector<float> without(
      static_cast<size_t>(work_.query_heads() * there.stride * work_.value_dim()));
  work_.backend().read_outputs(view.delta, std::ssize(without), without.data());
  for (size_t i = 0; i < without.size(); ++i) without[i] -= view.rounding[i];
  return norms_of({change_->change(without.data(), view.delta, there)}, there);
}

void OutputNorms::add_rounding(const StepBlock& block, const OutputRows& there) {
  for (const OutcomeBlock& view : block.outcomes) {
    std::vector<double> norms(there.steps.size(), 0.0);
    if (view.rounding != nullptr && !there.steps.empty()) norms = rounding_norms(view, there);
    for (size_t k = 0; k < there.steps.size(); ++k)
      of(view).rounding[static_cast<size_t>(there.steps[k])] = norms[k];
  }
}

void OutputNorms::add_heads(const StepBlock& block, std::vector<const float*> inputs) {
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
  std::vector<std::vector<float>> gated;
  for (const float*& input : inputs)
    if (change_)
      input = gated.emplace_back(change_->gated(input, block.first_step, block.steps)).data();
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
