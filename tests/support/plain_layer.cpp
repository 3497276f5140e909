#include "tests/support/plain_layer.hpp"

#include "run/trace/attention_reference.hpp"

namespace kvsim::test {
namespace {

std::vector<double> row_of(const Tensor& tensor, int64_t a, int64_t b) {
  std::vector<float> row(tensor.dim(2));
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
      heads_(layer.info->num_query_heads) {
  parallel_for(std::ssize(heads_), [this](int64_t head) { prepare(static_cast<int>(head)); });
}

void PlainLayer::prepare(int head) {
  Head& own = heads_[head];
  for (const int64_t row : rows_) own.attention.push_back(attention_row(layer_, head, row));
  for (int64_t i = 0; i < layer_.info->prompt_len; ++i) {
    const std::vector<double> value = row_of(layer_.v, head / layer_.info->group_size(), i);
    std::vector<double> projected(layer_.info->hidden_size, 0.0);
    for (int64_t k = 0; k < std::ssize(value); ++k) {
      const std::vector<double> row = row_of(layer_.wo, head, k);
      for (size_t c = 0; c < row.size(); ++c) projected[c] += value[k] * row[c];
    }
    own.weight.push_back(norm(projected, squares_));
  }
}

PlainMeasures PlainLayer::of_row(const PlainSets& kept, size_t r) const {
  const auto n = static_cast<size_t>(layer_.info->prompt_len);
  double attended = 0, attended_kept = 0, important = 0, important_kept = 0;
  std::vector<double> outputs, moved_outputs;  // [Hq][dv]
  for (int64_t h = 0; h < std::ssize(heads_); ++h) {
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
    const std::vector<double> z = weighted_values(layer_, h, full);
    const std::vector<double> moved = weighted_values(layer_, h, left);
    outputs.insert(outputs.end(), z.begin(), z.end());
    moved_outputs.insert(moved_outputs.end(), moved.begin(), moved.end());
  }
  const std::vector<double> whole = added_to_stream(layer_, rows_[r], outputs);
  std::vector<double> changed = added_to_stream(layer_, rows_[r], moved_outputs);
  for (size_t c = 0; c < changed.size(); ++c) changed[c] -= whole[c];
  const double error = norm(changed, true), output = norm(whole, true);
  return {share(attended_kept, attended), share(important_kept, important),
          error == 0    ? 0
          : output == 0 ? kUndefined
                        : error / output};
}

std::vector<PlainMeasures> PlainLayer::measure(const PlainSets& kept) const {
  std::vector<PlainMeasures> rows(rows_.size());
  parallel_for(std::ssize(rows), [&](int64_t r) { rows[r] = of_row(kept, r); });
  return rows;
}

}  // namespace kvsim::test
