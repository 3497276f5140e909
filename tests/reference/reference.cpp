#include "tests/reference/reference.hpp"

#include <algorithm>
#include <cmath>

#include "tests/support/random_trace.hpp"

namespace kvsim::reference {
namespace {

double at(const Tensor& tensor, int64_t a, int64_t b, int64_t c) {
  return static_cast<double>(test::element(tensor, a, b, c));
}

int kv_head_of(const LayerTrace& layer, int head) { return head / layer.info->group_size(); }

}  // namespace

std::vector<double> logits(const LayerTrace& layer, int head, int64_t row) {
  const int64_t position = layer.info->query_position[static_cast<size_t>(row)];
  const int kv_head = kv_head_of(layer, head);
  std::vector<double> result(static_cast<size_t>(layer.info->total_len), -kInfinity);
  for (int64_t i = 0; i <= position; ++i) {
    if (layer.sliding_window > 0 && i <= position - layer.sliding_window) continue;
    double dot = 0;
    for (int64_t j = 0; j < layer.info->head_dim; ++j)
      dot += at(layer.q, head, row, j) * at(layer.k, kv_head, i, j);
    double logit = layer.scale * dot;
    if (layer.softcap > 0) logit = layer.softcap * std::tanh(logit / layer.softcap);
    result[static_cast<size_t>(i)] = logit;
  }
  return result;
}

Attention attention(const LayerTrace& layer, int head, const std::vector<double>& logits,
                    const std::vector<bool>& present) {
  const auto in = [&](size_t i) { return present.empty() || present[i]; };
  const double sink = layer.attention_sink.empty()
                          ? -kInfinity
                          : static_cast<double>(layer.attention_sink[static_cast<size_t>(head)]);
  double maximum = sink;
  for (size_t i = 0; i < logits.size(); ++i)
    if (in(i)) maximum = std::max(maximum, logits[i]);
  double sum = std::exp(sink - maximum);
  for (size_t i = 0; i < logits.size(); ++i)
    if (in(i)) sum += std::exp(logits[i] - maximum);
  Attention result;
  result.log_sum_exp = maximum + std::log(sum);
  result.weight.assign(logits.size(), 0.0);
  for (size_t i = 0; i < logits.size(); ++i)
    if (in(i)) result.weight[i] = std::exp(logits[i] - maximum) / sum;
  return result;
}

std::vector<double> value(const LayerTrace& layer, int head, int64_t entry) {
  std::vector<double> result;
  for (int64_t c = 0; c < layer.value_dim(); ++c)
    result.push_back(at(layer.v, kv_head_of(layer, head), entry, c));
  return result;
}

std::vector<double> key_of(const LayerTrace& layer, int head, int64_t entry) {
  std::vector<double> result;
  for (int64_t c = 0; c < layer.k.dim(2); ++c)
    result.push_back(at(layer.k, kv_head_of(layer, head), entry, c));
  return result;
}

std::vector<double> output(const LayerTrace& layer, int head, const std::vector<double>& weight) {
  std::vector<double> result(static_cast<size_t>(layer.value_dim()), 0.0);
  for (size_t i = 0; i < weight.size(); ++i) {
    if (weight[i] == 0) continue;
    const std::vector<double> v = value(layer, head, static_cast<int64_t>(i));
    for (size_t c = 0; c < v.size(); ++c) result[c] += weight[i] * v[c];
  }
  return result;
}

std::vector<double> project(const LayerTrace& layer, int head, const std::vector<double>& x) {
  std::vector<double> result(static_cast<size_t>(layer.info->hidden_size), 0.0);
  for (size_t k = 0; k < x.size(); ++k)
    for (size_t c = 0; c < result.size(); ++c)
      result[c] += x[k] * at(layer.wo, head, static_cast<int64_t>(k), static_cast<int64_t>(c));
  return result;
}

std::vector<double> added(const LayerTrace& layer, int64_t row,
                          const std::vector<std::vector<double>>& z) {
  const OutputPath& path = layer.path;
  const Tensor& wo = path.wo.empty() ? layer.wo : path.wo;
  std::vector<std::vector<double>> u = z;
  double inner = 0, outer = 0, count = 0;
  for (int64_t h = 0; h < wo.dim(0); ++h)
    for (int64_t k = 0; k < wo.dim(1); ++k) {
      double& one = u[static_cast<size_t>(h)][static_cast<size_t>(k)];
      if (!path.gate.empty()) one *= at(path.gate, h, row, path.gate.dim(2) == 1 ? 0 : k);
      inner += one * one;
      ++count;
    }
  inner = path.inner.divides ? std::sqrt(inner / count + path.inner.eps) : 1;
  std::vector<double> y(static_cast<size_t>(wo.dim(2)), 0.0);
  for (int64_t h = 0; h < wo.dim(0); ++h)
    for (int64_t k = 0; k < wo.dim(1); ++k) {
      double x = u[static_cast<size_t>(h)][static_cast<size_t>(k)] / inner;
      if (!path.inner.gain.empty()) x *= path.inner.gain[static_cast<size_t>(h * wo.dim(1) + k)];
      for (size_t c = 0; c < y.size(); ++c) y[c] += x * at(wo, h, k, static_cast<int64_t>(c));
    }
  for (const double one : y) outer += one * one;
  outer = path.outer.divides ? std::sqrt(outer / static_cast<double>(y.size()) + path.outer.eps)
                             : 1;
  for (size_t c = 0; c < y.size(); ++c)
    y[c] *= (path.outer.gain.empty() ? 1.0 : path.outer.gain[c]) / outer;
  return y;
}

double l1(const std::vector<double>& x) {
  double sum = 0;
  for (const double value : x) sum += std::fabs(value);
  return sum;
}

double l2(const std::vector<double>& x) {
  double sum = 0;
  for (const double value : x) sum += value * value;
  return std::sqrt(sum);
}

}  // namespace kvsim::reference
