#include <Eigen/Core>

#include "analysis/measure.hpp"
#include "sim/core/numbers.hpp"

namespace kvsim::measures::locality {
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

/// Are an entry's attention scores alike at neighbouring steps (metrics.md 5.3)? The windows' sums
/// come from the Gram matrix of the steps, so that every order costs no more than adding up its
/// blocks. Holds the rows of one KV head's queries, g * T * n floats.
struct Locality : Measure {
  explicit Locality(const MeasureRun& run)
      : Measure(run),
        used_(run.info.steps() < kFewestSteps ? 0 : run.info.steps() / kWindow * kWindow) {
    orders_.push_back(ascending<int64_t>(used_));
    for (uint64_t a = 0; a < kOrders; ++a) {
      auto order = orders_.front();
      std::ranges::stable_sort(order, {}, [&](int64_t step) {
        return uniform(run.options.seed, a, static_cast<uint64_t>(step), 0);
      });
      orders_.push_back(order);
    }
  }

  MeasureNeeds needs() const override { return {.attention_columns = run().info.prompt_len}; }
  void start_rows(const MeasuredLayer& layer) override { found_.resize(layer.work.query_heads()); }
  void see_rows(const AttentionBlock& rows, int64_t first_step) override {
    if (used_ == 0) return;
    const int64_t entries = run().info.prompt_len;
    if (first_step == 0) rows_.assign(rows.heads, Table<float>(used_, entries));
    for (int x = 0; x < rows.heads; ++x)
      for (int64_t r = 0; r < std::min(rows.rows, used_ - first_step); ++r)
        std::copy_n(rows.attention_row(x, r), entries, rows_[x].row(first_step + r).begin());
    if (first_step >= used_ || first_step + rows.rows < used_) return;  // not the last of them
    parallel_for(rows.heads,
                 [&](int64_t x) { found_[rows.kv_head * rows.heads + x] = measured(rows_[x]); });
  }
  void finish(const MeasuredLayer& layer, MeasureResults& results) override {
    for (int h = 0; h < layer.work.query_heads(); ++h) {
      const auto [within, permuted] = found_[h];
      results.set("locality", {layer.index, h}, 1 - within / permuted);
      results.set("locality_within", {layer.index, h}, within);
      results.set("locality_permuted", {layer.index, h}, permuted);
    }
  }

 private:
  /// Variance within windows over the total one: as the steps are, and of random orders.
  struct Found {
    double within = kUndefined, permuted = kUndefined;
  };
  Found measured(const Table<float>& rows) const {
    const Eigen::MatrixXd gram = centred_gram(rows);
    const double total = gram.trace() / static_cast<double>(used_);
    if (total == 0) return {};
    Found found{within_windows(gram, orders_.front()) / total, 0};
    for (size_t a = 1; a < orders_.size(); ++a)
      found.permuted += within_windows(gram, orders_[a]) / total / kOrders;
    return found;
  }

  int64_t used_;                              ///< steps in whole windows; 0: too few
  std::vector<std::vector<int64_t>> orders_;  ///< as they are, then the random ones
  std::vector<Table<float>> rows_;            ///< [used][n] of each head of the KV head at work
  std::vector<Found> found_;                  ///< [Hq]
};
const RegisterMeasure<Locality> registered(measure);

}  // namespace
}  // namespace kvsim::measures::locality
