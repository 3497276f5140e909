#include "analysis/stream_change.hpp"

#include <algorithm>
#include <cmath>

#include "sim/core/parallel.hpp"
#include "sim/core/stream_share.hpp"

namespace kvsim {

StreamChange::StreamChange(LayerWork& work)
    : work_(work), heads_(work.query_heads()), width_(work.value_dim()),
      z_(static_cast<size_t>(work.info().steps())), weighed_(z_.size()) {
  const OutputPath& path = work.trace().path;
  if (!path.outer.divides) return;
  before_norm_ = work.trace();
  before_norm_.wo = path.wo;
  before_norm_.path.outer = {};
  set_usual_output(before_norm_);
  host_ = make_cpu_backend();
  projection_ = host_->projection(before_norm_);
}

std::vector<float> StreamChange::set_full(const float* z, const OutputRows& there) {
  Vectors rows = read(z, there);
  for (size_t r = 0; r < rows.size(); ++r) z_[static_cast<size_t>(there.steps[r])] = rows[r];
  weigh(rows, there.steps);
  for (size_t r = 0; r < rows.size(); ++r) weighed_[static_cast<size_t>(there.steps[r])] = rows[r];
  return by_heads(rows);
}

std::vector<float> StreamChange::change(const float* before, const float* after,
                                        const OutputRows& there) const {
  const auto weighed = [&](const float* x, Vectors& rows) {
    for (const int64_t step : there.steps)
      rows.push_back((x == nullptr ? weighed_ : z_)[static_cast<size_t>(step)]);
    if (x == nullptr) return Vectors(rows.size(), std::vector<double>(rows.front().size(), 0.0));
    Vectors moved = read(x, there);
    parallel_for(std::ssize(rows), [&](int64_t r) {
      const auto at = static_cast<size_t>(r);
      for (size_t i = 0; i < rows[at].size(); ++i) rows[at][i] += moved[at][i];
    });
    weigh(rows, there.steps);
    return moved;
  };
  Vectors from, to;
  const Vectors moved_from = weighed(before, from), moved_to = weighed(after, to);
  parallel_for(std::ssize(to), [&](int64_t r) {
    const auto at = static_cast<size_t>(r);
    const bool same = moved_from[at] ==
                      moved_to[at];  // two roots of one vector may differ by rounding
    for (size_t i = 0; i < to[at].size(); ++i) to[at][i] = same ? 0 : to[at][i] - from[at][i];
  });
  return by_heads(to);
}

std::vector<float> StreamChange::gated(const float* x, int64_t first, int64_t steps) const {
  std::vector<float> out(static_cast<size_t>(heads_ * steps * width_));
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

StreamChange::Vectors StreamChange::read(const float* x, const OutputRows& there) const {
  std::vector<float> all(static_cast<size_t>(heads_ * there.stride * width_));
  work_.backend().read_outputs(x, std::ssize(all), all.data());
  Vectors rows(there.rows.size());
  parallel_for(std::ssize(rows), [&](int64_t r) {
    std::vector<double>& row = rows[static_cast<size_t>(r)];
    for (int64_t h = 0; h < heads_; ++h) {
      const auto from = all.begin() +
                        (h * there.stride + there.rows[static_cast<size_t>(r)]) * width_;
      row.insert(row.end(), from, from + width_);
    }
  });
  return rows;
}

/// The gate of a step over the one that W* holds, per channel.
void StreamChange::read_gate(int64_t head, int64_t step, std::vector<double>& gate) const {
  const OutputPath& path = work_.trace().path;
  std::vector<float> own;
  path.read_gate(head, work_.info().first_step() + step, own);
  gate.resize(static_cast<size_t>(width_));
  for (size_t c = 0; c < gate.size(); ++c)
    gate[c] = static_cast<double>(own[std::min(c, own.size() - 1)]) /
              static_cast<double>(path.usual_gate[static_cast<size_t>(head * width_) + c]);
}

/// Outputs of heads become what W* takes: gates and roots over those that W* holds.
void StreamChange::weigh(Vectors& outputs, const std::vector<int64_t>& steps) const {
  const OutputPath& path = work_.trace().path;
  const auto scale = [](std::vector<double>& row, double factor) {
    for (double& one : row) one *= factor;
  };
  const auto ratio = [](const PathNorm& norm, double root) {
    return norm.usual / (root > 0 ? root : 1);  // a vector of zeros stays one
  };
  parallel_for(std::ssize(outputs), [&](int64_t r) {
    std::vector<double>& row = outputs[static_cast<size_t>(r)];
    std::vector<double> gate;
    for (int64_t h = 0; h < heads_ && !path.gate.empty(); ++h) {
      read_gate(h, steps[static_cast<size_t>(r)], gate);
      for (size_t c = 0; c < gate.size(); ++c) row[static_cast<size_t>(h * width_) + c] *= gate[c];
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
  std::vector<int64_t> all(outputs.size());
  for (size_t r = 0; r < all.size(); ++r) all[r] = static_cast<int64_t>(r);
  std::vector<double> norms(outputs.size());
  projection_->norms(std::vector<const float*>{vectors.data()}, std::ssize(all), all, norms.data());
  const auto columns = static_cast<double>(before_norm_.wo.dim(2));
  for (size_t r = 0; r < outputs.size(); ++r)
    scale(outputs[r], ratio(path.outer, path.outer.root(norms[r] * norms[r], columns)));
}

std::vector<float> StreamChange::by_heads(const Vectors& outputs) const {
  const int64_t rows = std::ssize(outputs);
  std::vector<float> out(static_cast<size_t>(heads_ * rows * width_));
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t h = 0; h < heads_; ++h)
      for (int64_t c = 0; c < width_; ++c)
        out[static_cast<size_t>((h * rows + r) * width_ + c)] = static_cast<float>(
            outputs[static_cast<size_t>(r)][static_cast<size_t>(h * width_ + c)]);
  return out;
}

}  // namespace kvsim
