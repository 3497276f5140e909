#include <Eigen/Core>

#include "analysis/formulas.hpp"
#include "analysis/measure.hpp"
#include "analysis/statistics.hpp"
#include "sim/core/numbers.hpp"

namespace kvsim {
namespace {

constexpr int64_t kWindow = 16;
constexpr int64_t kFewestSteps = 32;
constexpr uint64_t kOrders = 20;
constexpr int64_t kColumns = 2048;  // of the centred rows that are in float64 at a time

/// Gram matrix of the rows after the mean row was taken away; lower triangle.
Eigen::MatrixXd centred_gram(const Table<float>& rows) {
  using Rows = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  const Eigen::Map<const Rows> all(rows.data(), rows.rows(), rows.columns());
  Eigen::MatrixXd gram = Eigen::MatrixXd::Zero(rows.rows(), rows.rows());
  for (int64_t c = 0; c < rows.columns(); c += kColumns) {
    const int64_t width = std::min(kColumns, rows.columns() - c);
    Eigen::MatrixXd part = all.middleCols(c, width).cast<double>();
    part.rowwise() -= part.colwise().mean().eval();
    gram.selfadjointView<Eigen::Lower>().rankUpdate(part);
  }
  return gram;
}

/// Sum over entries of the mean variance within windows of the steps in this order.
double within_windows(const Eigen::MatrixXd& gram, const std::vector<int64_t>& order) {
  double sum = 0;
  const auto at = [&](size_t a, size_t b) {
    return gram(std::max(order[a], order[b]), std::min(order[a], order[b]));
  };
  for (size_t first = 0; first < order.size(); first += kWindow) {
    double squares = 0, products = 0;
    for (size_t a = first; a < first + kWindow; ++a) {
      squares += at(a, a);
      for (size_t b = first; b < first + kWindow; ++b) products += at(a, b);
    }
    sum += squares / kWindow - products / (kWindow * kWindow);
  }
  return sum / static_cast<double>(order.size() / kWindow);
}

}  // namespace

Locality::Locality(int query_heads, int64_t entries, int64_t steps, uint64_t seed)
    : entries_(entries), used_(steps < kFewestSteps ? 0 : steps / kWindow * kWindow),
      results_(query_heads, {kUndefined, kUndefined, kUndefined}) {
  orders_.push_back(ascending<int64_t>(used_));
  for (uint64_t a = 0; a < kOrders; ++a) {
    const auto draw = [&](int64_t step) {
      return uniform(seed, a, static_cast<uint64_t>(step), 0);
    };
    auto order = ascending<int64_t>(used_);
    std::stable_sort(order.begin(), order.end(),
                     [&](int64_t x, int64_t y) { return draw(x) < draw(y); });
    orders_.push_back(order);
  }
}

void Locality::add(const AttentionBlock& block, int64_t first_row) {
  if (used_ == 0) return;
  if (first_row == 0) rows_.assign(block.heads, Table<float>(used_, entries_));
  const int64_t rows = std::min(block.rows, used_ - first_row);
  for (int x = 0; x < block.heads; ++x)
    for (int64_t r = 0; r < rows; ++r)
      std::copy_n(block.attention_row(x, r), entries_, rows_[x].row(first_row + r).begin());
  if (first_row >= used_ || first_row + block.rows < used_) return;  // not the last of them
  parallel_for(block.heads,
               [&](int64_t x) { results_[block.kv_head * block.heads + x] = measure(rows_[x]); });
}

Locality::Result Locality::measure(const Table<float>& rows) const {
  const Eigen::MatrixXd gram = centred_gram(rows);
  const double total = gram.trace() / static_cast<double>(used_);
  if (total == 0) return {kUndefined, kUndefined, kUndefined};
  Result result;
  result.within = within_windows(gram, orders_.front()) / total;
  for (size_t a = 1; a < orders_.size(); ++a)
    result.permuted += within_windows(gram, orders_[a]) / total / kOrders;
  result.locality = 1 - result.within / result.permuted;
  return result;
}

}  // namespace kvsim

namespace kvsim::measures::locality {
namespace {

constexpr const char* kHead = "layer head";
const DeclareMeasure measure(
    {.name = "locality", .place = 540, .whole = true},
    {{"locality", kHead, "1", "locality of attention in time",
      "1 - locality_within / locality_permuted: 0 for white noise, near 1 for "
      "slow change; NaN for fewer than 32 steps"},
     {"locality_within", kHead, "1", "variance within windows over total variance",
      "mean over windows of 16 steps, summed over prompt entries"},
     {"locality_permuted", kHead, "1", "the same for random orders of the steps",
      "mean of 20 orders"}});

struct LocalityMeasure : MeasureOfRows<Locality> {
  using MeasureOfRows::MeasureOfRows;

  MeasureNeeds needs() const override { return {.attention_columns = run().info.prompt_len}; }
  void start_rows(const MeasuredLayer& layer) override {
    seen_.emplace(layer.work.query_heads(), run().info.prompt_len, run().info.steps(),
                  run().options.seed);
  }
  void finish(const MeasuredLayer& layer, MeasureResults& results) override {
    for (int h = 0; h < layer.work.query_heads(); ++h) {
      const Locality::Result& head = seen_->result(h);
      results.set("locality", {layer.index, h}, head.locality);
      results.set("locality_within", {layer.index, h}, head.within);
      results.set("locality_permuted", {layer.index, h}, head.permuted);
    }
  }
};
const RegisterMeasure<LocalityMeasure> registered(measure);

}  // namespace
}  // namespace kvsim::measures::locality
