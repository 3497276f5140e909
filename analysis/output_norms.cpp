#include <chrono>

#include "analysis/dataset.hpp"
#include "analysis/measure.hpp"
#include "analysis/statistics.hpp"

namespace kvsim {

std::string stream_error_layers(const Dataset& results) {
  if (!results.has("stream_error_rms")) return "";
  const int64_t layers = results.size("layer");
  const auto model = results.attribute_or<int64_t>("num_layers", 0);
  if (model == 0) return "the " + std::to_string(layers) + " captured layers";
  if (layers >= model) return "";
  return std::to_string(layers) + " of the model's " + std::to_string(model) + " layers";
}

/// Outputs of a block of steps that a sink was given: [Hq][stride][dv], on the host or a `delta` of
/// the block in work; `rows` of them are meant, which are `steps` of 0..T-1.
struct OutputRows {
  int64_t stride = 0;
  std::vector<int64_t> rows;
  std::vector<int64_t> steps;
};

/// Turns changes of what a layer's heads put out into vectors whose product with W* is the change
/// of the residual stream, by gates and norms as they then are (trace-format.md 8).
class StreamChange {
 public:
  explicit StreamChange(LayerWork& work)
      : work_(work), heads_(work.query_heads()), width_(work.value_dim()), z_(work.info().steps()),
        weighed_(z_.size()) {
    const OutputPath& path = work.trace().path;
    if (!path.outer.divides) return;
    before_norm_ = work.trace();
    before_norm_.wo = path.wo;
    before_norm_.path.outer = {};
    set_usual_output(before_norm_);
    host_ = make_cpu_backend();
    projection_ = host_->projection(before_norm_);
  }

  /// Outputs z of the full cache; before changes() of the same steps. Returns [Hq][rows][dv].
  std::vector<float> set_full(const float* z, const OutputRows& there) {
    Vectors rows = read(z, there);
    for (size_t r = 0; r < rows.size(); ++r) z_[there.steps[r]] = rows[r];
    weigh(rows, there.steps);
    for (size_t r = 0; r < rows.size(); ++r) weighed_[there.steps[r]] = rows[r];
    return by_heads(rows);
  }

  /// From z + `before` to z + `after`; null is 0. Returns [Hq][rows][dv].
  std::vector<float> change(const float* before, const float* after,
                            const OutputRows& there) const {
    const auto weighed = [&](const float* x, Vectors& rows) {
      for (const int64_t step : there.steps) rows.push_back((x == nullptr ? weighed_ : z_)[step]);
      if (x == nullptr) return Vectors(rows.size(), std::vector<double>(rows.front().size(), 0.0));
      Vectors moved = read(x, there);
      parallel_for(std::ssize(rows), [&](int64_t r) {
        for (size_t i = 0; i < rows[r].size(); ++i) rows[r][i] += moved[r][i];
      });
      weigh(rows, there.steps);
      return moved;
    };
    Vectors from, to;
    const Vectors moved_from = weighed(before, from), moved_to = weighed(after, to);
    parallel_for(std::ssize(to), [&](int64_t r) {
      const bool same = moved_from[r] ==
                        moved_to[r];  // two roots of one vector may differ by rounding
      for (size_t i = 0; i < to[r].size(); ++i) to[r][i] = same ? 0 : to[r][i] - from[r][i];
    });
    return by_heads(to);
  }

  /// Every head by itself, x [Hq][steps][dv] from step `first` on: with the gate of its step.
  std::vector<float> gated(const float* x, int64_t first, int64_t steps) const {
    std::vector<float> out(heads_ * steps * width_);
    work_.backend().read_outputs(x, std::ssize(out), out.data());
    if (work_.trace().path.gate.empty()) return out;
    parallel_for(heads_, [&](int64_t h) {
      std::vector<double> gate;
      for (int64_t s = 0; s < steps; ++s) {
        read_gate(h, first + s, gate);
        float* const row = out.data() + (h * steps + s) * width_;
        for (size_t c = 0; c < gate.size(); ++c)
          row[c] = static_cast<float>(static_cast<double>(row[c]) * gate[c]);
      }
    });
    return out;
  }

 private:
  using Vectors = std::vector<std::vector<double>>;  ///< [rows][Hq * dv]

  Vectors read(const float* x, const OutputRows& there) const {
    std::vector<float> all(heads_ * there.stride * width_);
    work_.backend().read_outputs(x, std::ssize(all), all.data());
    Vectors rows(there.rows.size());
    parallel_for(std::ssize(rows), [&](int64_t r) {
      std::vector<double>& row = rows[r];
      for (int64_t h = 0; h < heads_; ++h) {
        const auto from = all.begin() + (h * there.stride + there.rows[r]) * width_;
        row.insert(row.end(), from, from + width_);
      }
    });
    return rows;
  }

  /// The gate of a step over the one that W* holds, per channel.
  void read_gate(int64_t head, int64_t step, std::vector<double>& gate) const {
    const OutputPath& path = work_.trace().path;
    std::vector<float> own;
    path.read_gate(head, work_.info().first_step() + step, own);
    gate.resize(width_);
    for (size_t c = 0; c < gate.size(); ++c)
      gate[c] = static_cast<double>(own[std::min(c, own.size() - 1)]) /
                static_cast<double>(path.usual_gate[static_cast<size_t>(head * width_) + c]);
  }

  /// Outputs of heads become what W* takes: gates and roots over those that W* holds.
  void weigh(Vectors& outputs, const std::vector<int64_t>& steps) const {
    const OutputPath& path = work_.trace().path;
    const auto scale = [](std::vector<double>& row, double factor) {
      for (double& one : row) one *= factor;
    };
    const auto ratio = [](const PathNorm& norm, double root) {
      return norm.usual / (root > 0 ? root : 1);  // a vector of zeros stays one
    };
    parallel_for(std::ssize(outputs), [&](int64_t r) {
      std::vector<double>& row = outputs[r];
      std::vector<double> gate;
      for (int64_t h = 0; h < heads_ && !path.gate.empty(); ++h) {
        read_gate(h, steps[r], gate);
        for (size_t c = 0; c < gate.size(); ++c)
          row[static_cast<size_t>(h * width_) + c] *= gate[c];
      }
      if (!path.inner.divides) return;
      double squares = 0;
      for (size_t i = 0; i < row.size(); ++i) {
        const double real = row[i] *
                            (path.gate.empty() ? 1.0 : static_cast<double>(path.usual_gate[i]));
        squares += real * real;
      }
      scale(row, ratio(path.inner, path.inner.root(squares, static_cast<double>(row.size()))));
    });
    if (projection_ == nullptr || outputs.empty()) return;
    const std::vector<float> vectors = by_heads(outputs);
    const auto all = ascending<int64_t>(std::ssize(outputs));
    std::vector<double> norms(outputs.size());
    projection_->norms(std::vector<const float*>{vectors.data()}, std::ssize(all), all,
                       norms.data());
    const auto columns = static_cast<double>(before_norm_.wo.dim(2));
    for (size_t r = 0; r < outputs.size(); ++r)
      scale(outputs[r], ratio(path.outer, path.outer.root(norms[r] * norms[r], columns)));
  }

  std::vector<float> by_heads(const Vectors& outputs) const {
    const int64_t rows = std::ssize(outputs);
    std::vector<float> out(heads_ * rows * width_);
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t h = 0; h < heads_; ++h)
        for (int64_t c = 0; c < width_; ++c)
          out[(h * rows + r) * width_ + c] = static_cast<float>(outputs[r][h * width_ + c]);
    return out;
  }

  LayerWork& work_;
  int64_t heads_, width_;
  Vectors z_;                      ///< [T]; empty of steps that were not seen
  Vectors weighed_;                ///< [T] z_ as W* takes it
  LayerTrace before_norm_;         ///< W_O with all that stands before the norm behind it
  std::unique_ptr<Backend> host_;  ///< of its own, as a backend prepares one W_O at a time
  std::unique_ptr<Projection> projection_;
};

namespace {

std::span<double> part(Table<double>& table, int64_t row, int64_t first, int64_t steps) {
  return table.row(row).subspan(first, steps);
}

}  // namespace

OutputNorms::OutputNorms(LayerWork& work, size_t outcomes, std::vector<int64_t> steps, bool heads,
                         bool rounding)
    : work_(work), steps_(std::move(steps)), heads_(heads), rounding_(rounding),
      projection_(work.backend().projection(work.trace())) {
  if (work.trace().path.needs_evaluation()) change_ = std::make_unique<StreamChange>(work);
  const std::vector<double> series(work.info().steps(), kUndefined);
  full_ = series;
  if (heads) full_heads_ = Table<double>(work.query_heads(), work.info().steps(), kUndefined);
  outcomes_.assign(outcomes, {series, full_heads_, rounding ? series : std::vector<double>()});
}

OutputNorms::~OutputNorms() = default;

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
  there.stride = block.output_steps ? std::ssize(*block.output_steps) : block.steps;
  for (int64_t row = 0; row < there.stride; ++row) {
    const int64_t step = block.output_steps ? (*block.output_steps)[row] : block.first_step + row;
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
    for (const int64_t step : there.steps) error[step] = 0;
  }
  if (there.steps.empty() || inputs.empty()) return;
  const std::vector<double> norms = change_ ? changed_norms(block, there)
                                            : norms_of_rows(inputs, there);
  for (size_t x = 0; x < inputs.size(); ++x)
    for (size_t k = 0; k < there.steps.size(); ++k)
      (*outputs[x])[there.steps[k]] = norms[x * there.steps.size() + k];
}

/// Norms [inputs][rows] of products with W_O.
std::vector<double> OutputNorms::norms_of_rows(const std::vector<const float*>& inputs,
                                               const OutputRows& there) {
  std::vector<double> norms(inputs.size() * there.rows.size());
  projection_->norms(inputs, there.stride, there.rows, norms.data());
  return norms;
}

/// Norms of vectors [Hq][rows][dv] that StreamChange has made.
std::vector<double> OutputNorms::norms_of(const std::vector<std::vector<float>>& vectors,
                                          const OutputRows& there) {
  std::vector<const float*> inputs;
  for (const std::vector<float>& one : vectors) inputs.push_back(one.data());
  OutputRows all{std::ssize(there.rows), there.rows, there.steps};
  std::iota(all.rows.begin(), all.rows.end(), int64_t{0});
  return norms_of_rows(inputs, all);
}

/// Projects what the full cache adds to the stream, when it is here, then what each delta changes
/// of it.
std::vector<double> OutputNorms::changed_norms(const StepBlock& block, const OutputRows& there) {
  std::vector<std::vector<float>> vectors;
  if (block.full != nullptr) vectors.push_back(change_->set_full(block.full->z.data(), there));
  for (const OutcomeBlock& view : block.outcomes)
    if (view.delta != nullptr) vectors.push_back(change_->change(nullptr, view.delta, there));
  return norms_of(vectors, there);
}

/// Change that rounding makes: from the outputs without it to those with it.
std::vector<double> OutputNorms::rounding_norms(const OutcomeBlock& view, const OutputRows& there) {
  if (!change_) return norms_of_rows({view.rounding}, there);
  std::vector<float> without(work_.query_heads() * there.stride * work_.value_dim());
  work_.backend().read_outputs(view.delta, std::ssize(without), without.data());
  for (size_t i = 0; i < without.size(); ++i) without[i] -= view.rounding[i];
  return norms_of({change_->change(without.data(), view.delta, there)}, there);
}

void OutputNorms::add_rounding(const StepBlock& block, const OutputRows& there) {
  for (const OutcomeBlock& view : block.outcomes) {
    std::vector<double> norms(there.steps.size(), 0.0);
    if (view.rounding != nullptr && !there.steps.empty()) norms = rounding_norms(view, there);
    for (size_t k = 0; k < there.steps.size(); ++k) of(view).rounding[there.steps[k]] = norms[k];
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
