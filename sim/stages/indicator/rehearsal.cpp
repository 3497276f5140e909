#include <Eigen/Core>
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "sim/core/parallel.hpp"
#include "sim/stages/indicator/indicator.hpp"
#include "sim/stages/parameter.hpp"

namespace kvsim {
namespace {

const Declare rehearsal_steps{{.key = "rehearsal_steps",
                               .place = 524,
                               .type = ValueType::count,
                               .fallback = "128",
                               .meaning = "length of the pieces that stand in for what follows",
                               .unit = "tokens",
                               .low = 1}};

constexpr int64_t kRows = 16;  // moved queries whose logits are made at a time
constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

/// Attention on the prompt if pieces of the prompt were written once more after it: the query at j
/// stands at n + j mod H and sees the prompt's keys from there, and beside them, as near as they
/// were, the keys of its own piece up to itself.
class RehearsalRows : public RowIndicator {
 public:
  RehearsalRows(LayerWork& work, Range candidates, int64_t steps)
      : work_(work), candidates_(candidates), steps_(steps) {}

  void start(const AttentionBlock& block) override {
    if (block.kv_head != kv_head_) keys_ = work_.keys(block.kv_head);
    kv_head_ = block.kv_head;
    stored_ = stored_queries(work_, block.positions, false);
    shares_.reserve(block.heads * block.rows * candidates_.size());
    const int64_t chunks = (block.rows + kRows - 1) / kRows;
    parallel_for(block.heads * chunks, [&](int64_t task) {
      const int64_t first = task % chunks * kRows;
      rehearse(block, static_cast<int>(task / chunks),
               {first, std::min(block.rows, first + kRows)});
    });
  }

  void row(const AttentionBlock& block, int head, int64_t row, Range candidates,
           std::span<double> out) const override {
    const auto own = stored_row(block, head, row);
    const auto first = static_cast<size_t>(candidates.begin - candidates_.begin);
    std::ranges::copy(own.subspan(first, out.size()), out.begin());
  }
  std::span<const double> stored_row(const AttentionBlock& block, int head,
                                     int64_t row) const override {
    const int64_t columns = candidates_.size();
    return {shares_.data() + (head * block.rows + row) * columns, static_cast<size_t>(columns)};
  }

 private:
  using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

  /// Rows `rows` of one head of the block.
  void rehearse(const AttentionBlock& block, int head, Range rows) {
    Matrix moved(rows.size(), keys_.columns());
    for (int64_t r = 0; r < rows.size(); ++r) {
      const auto at = static_cast<size_t>(rows.begin + r);
      const int64_t query = stored_[at], position = block.positions[at];
      work_.trace().q.read(block.kv_head * block.heads + head, query, query + 1, &moved(r, 0));
      move(work_.entries() + position % steps_ - position, {&moved(r, 0), size(moved.cols())});
    }
    const Eigen::Map<const Matrix> keys(keys_.data(), keys_.rows(), keys_.columns());
    const Matrix products = moved * keys.transpose();
    for (int64_t r = 0; r < rows.size(); ++r)
      share(block, head, rows.begin + r, {&products(r, 0), size(products.cols())});
  }
  static size_t size(int64_t count) { return static_cast<size_t>(count); }

  /// Turns a query to another position (trace-format.md 2, rope/inv_freq).
  void move(int64_t positions, std::span<float> query) const {
    const TraceInfo& info = work_.info();
    const size_t half = info.rope_inv_freq.size();
    for (size_t j = 0; j < half; ++j) {
      const double angle = static_cast<double>(positions) * info.rope_inv_freq[j];
      float& a = query[info.rope_interleaved ? 2 * j : j];
      float& b = query[info.rope_interleaved ? 2 * j + 1 : j + half];
      const double x = static_cast<double>(a), y = static_cast<double>(b);
      a = static_cast<float>(x * std::cos(angle) - y * std::sin(angle));
      b = static_cast<float>(x * std::sin(angle) + y * std::cos(angle));
    }
  }

  double logit(float product) const {
    const double x = work_.trace().scale * static_cast<double>(product);
    const double cap = work_.trace().softcap;
    return cap > 0 ? cap * std::tanh(x / cap) : x;
  }

  /// Softmax over the prompt's keys, the piece's own, and the sink.
  void share(const AttentionBlock& block, int head, int64_t row, std::span<const float> products) {
    const int64_t position = block.positions[size(row)];
    const std::vector<float>& sinks = work_.trace().attention_sink;
    const float* const logits = block.logit_row(head, row);
    const Range piece{position - position % steps_, position + 1};
    const double sink = sinks.empty()
                            ? kMinusInfinity
                            : static_cast<double>(sinks[size(block.kv_head * block.heads + head)]);
    double top = sink;
    for (const float product : products) top = std::max(top, logit(product));
    for (int64_t i = piece.begin; i < piece.end; ++i)
      top = std::max(top, static_cast<double>(logits[i]));
    double sum = std::exp(sink - top);
    for (int64_t i = piece.begin; i < piece.end; ++i)
      sum += std::exp(static_cast<double>(logits[i]) - top);
    std::vector<double> mass(products.size());
    for (size_t i = 0; i < products.size(); ++i)
      sum += mass[i] = std::exp(logit(products[i]) - top);
    double* const out = shares_.data() + (head * block.rows + row) * candidates_.size();
    for (int64_t i = candidates_.begin; i < candidates_.end; ++i)
      out[i - candidates_.begin] = mass[size(i)] / sum;
  }

  LayerWork& work_;
  Range candidates_;
  int64_t steps_;  // H
  int kv_head_ = -1;
  Table<float> keys_;            // [n][d] of that KV head
  std::vector<int64_t> stored_;  // [rows] of the block: index among the stored queries
  Buffer<double> shares_;        // [heads][rows][candidates]
};

class Rehearsal : public Indicator {
 public:
  Rehearsal()
      : Indicator({"indicator",
                   "rehearsal",
                   "attention of the query moved behind the prompt, with its own piece",
                   "kvsim",
                   {"rehearsal_steps"}}) {}
  Axes axes() const override { return Axes::head_row; }
  bool needs_logits() const override { return true; }
  bool moves_queries() const override { return true; }
  std::unique_ptr<RowIndicator> rows(LayerWork& work, const Settings& settings,
                                     const Segment& segment) const override {
    return std::make_unique<RehearsalRows>(work, segment.candidates,
                                           settings.count("rehearsal_steps"));
  }
};
const Register<Indicator, Rehearsal> rehearsal;

}  // namespace
}  // namespace kvsim
