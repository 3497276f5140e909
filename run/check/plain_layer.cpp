#include "run/check/plain_layer.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "sim/core/parallel.hpp"
#include "sim/core/stream_share.hpp"

namespace kvsim {
namespace {

std::vector<double> row_of(const Tensor& tensor, int64_t a, int64_t b) {
  std::vector<float> row(static_cast<size_t>(tensor.dim(2)));
  tensor.read(a, b, b + 1, row.data());
  return {row.begin(), row.end()};
}

double share(double part, double whole) { return whole == 0 ? 1 : part / whole; }

double norm(const std::vector<double>& x, bool squares) {
  double sum = 0;
  for (const double one : x) sum += squares ? one * one : std::fabs(one);
  return squares ? std::sqrt(sum) : sum;
}

}  // namespace

PlainLayer::PlainLayer(const LayerTrace& layer, std::vector<int64_t> rows, bool squares)
    : layer_(layer), rows_(std::move(rows)), squares_(squares),
      heads_(static_cast<size_t>(layer.info->num_query_heads)) {
  parallel_for(std::ssize(heads_), [this](int64_t head) { prepare(static_cast<int>(head)); });
}

void PlainLayer::prepare(int head) {
  Head& own = heads_[static_cast<size_t>(head)];
  for (const int64_t row : rows_) own.attention.push_back(attention(head, row));
  for (int64_t i = 0; i < layer_.info->prompt_len; ++i) {
    std::vector<double> projected(static_cast<size_t>(layer_.info->hidden_size), 0.0);
    add_projected(head, value(head, i), projected);
    own.weight.push_back(norm(projected, squares_));
  }
}

/// A of metrics.md: softmax over everything that the query sees, the sink among it.
std::vector<double> PlainLayer::attention(int head, int64_t row) const {
  const int64_t position = layer_.info->query_position[static_cast<size_t>(row)];
  const int kv_head = head / layer_.info->group_size();
  const std::vector<double> query = row_of(layer_.q, head, row);
  constexpr double kUnseen = -std::numeric_limits<double>::infinity();
  std::vector<double> weights;
  double largest = layer_.attention_sink.empty() ? kUnseen
                                                 : layer_.attention_sink[static_cast<size_t>(head)];
  const double sink = largest;
  for (int64_t i = 0; i <= position; ++i) {
    double logit = 0;
    const std::vector<double> key = row_of(layer_.k, kv_head, i);
    for (size_t c = 0; c < key.size(); ++c) logit += query[c] * key[c];
    logit *= layer_.scale;
    if (layer_.softcap > 0) logit = layer_.softcap * std::tanh(logit / layer_.softcap);
    if (layer_.sliding_window > 0 && i <= position - layer_.sliding_window) logit = kUnseen;
    weights.push_back(logit);
    largest = std::max(largest, logit);
  }
  double sum = std::exp(sink - largest);
  for (double& weight : weights) sum += weight = std::exp(weight - largest);
  for (double& weight : weights) weight /= sum;
  return weights;
}

std::vector<double> PlainLayer::value(int head, int64_t entry) const {
  return row_of(layer_.v, head / layer_.info->group_size(), entry);
}

std::vector<double> PlainLayer::output(int head, const std::vector<double>& weights) const {
  std::vector<double> sum(static_cast<size_t>(layer_.value_dim()), 0.0);
  for (size_t i = 0; i < weights.size(); ++i) {
    if (weights[i] == 0) continue;
    const std::vector<double> v = value(head, static_cast<int64_t>(i));
    for (size_t c = 0; c < v.size(); ++c) sum[c] += weights[i] * v[c];
  }
  return sum;
}

void PlainLayer::add_projected(int head, const std::vector<double>& x,
                               std::vector<double>& sum) const {
  for (size_t k = 0; k < x.size(); ++k) {
    const std::vector<double> row = row_of(layer_.wo, head, static_cast<int64_t>(k));
    for (size_t c = 0; c < row.size(); ++c) sum[c] += x[k] * row[c];
  }
}

PlainMeasures PlainLayer::of_row(const PlainSets& kept, size_t r) const {
  const auto n = static_cast<size_t>(layer_.info->prompt_len);
  double attended = 0, attended_kept = 0, important = 0, important_kept = 0;
  std::vector<double> outputs, moved_outputs;  // [Hq][dv]
  for (size_t h = 0; h < heads_.size(); ++h) {
    const std::vector<double>& full = heads_[h].attention[r];
    std::vector<double> left = full;
    double dropped = 0;
    for (size_t i = 0; i < n; ++i) {
      const double importance = full[i] * heads_[h].weight[i];
      attended += full[i];
      important += importance;
      if (kept[h][i]) {
        attended_kept += full[i];
        important_kept += importance;
      } else {
        dropped += full[i];
        left[i] = 0;
      }
    }
    for (double& weight : left) weight /= 1 - dropped;
    const std::vector<double> z = output(static_cast<int>(h), full);
    const std::vector<double> moved = output(static_cast<int>(h), left);
    outputs.insert(outputs.end(), z.begin(), z.end());
    moved_outputs.insert(moved_outputs.end(), moved.begin(), moved.end());
  }
  const std::vector<double> whole = added_to_stream(layer_, rows_[r], outputs);
  std::vector<double> changed = added_to_stream(layer_, rows_[r], moved_outputs);
  for (size_t c = 0; c < changed.size(); ++c) changed[c] -= whole[c];
  const double error = norm(changed, true), output = norm(whole, true);
  const double undefined = std::numeric_limits<double>::quiet_NaN();
  return {{share(attended_kept, attended)},
          {share(important_kept, important)},
          {error == 0    ? 0
           : output == 0 ? undefined
                         : error / output}};
}

PlainMeasures PlainLayer::measure(const PlainSets& kept) const {
  std::vector<PlainMeasures> rows(rows_.size());
  parallel_for(std::ssize(rows), [&](int64_t r) {
    rows[static_cast<size_t>(r)] = of_row(kept, static_cast<size_t>(r));
  });
  PlainMeasures all;
  for (const PlainMeasures& row : rows) {
    all.retained_attention.push_back(row.retained_attention[0]);
    all.retained_importance.push_back(row.retained_importance[0]);
    all.output_error.push_back(row.output_error[0]);
  }
  return all;
}

}  // namespace kvsim
