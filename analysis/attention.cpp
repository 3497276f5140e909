// Of the attention itself (metrics.md 5).
#include <Eigen/Core>

#include "analysis/formulas.hpp"
#include "analysis/measure.hpp"
#include "analysis/statistics.hpp"
#include "sim/core/numbers.hpp"

namespace kvsim {
namespace {

constexpr int64_t kParts = 128;

VariableValues middles(const RunShape& run) {
  std::vector<double> values;
  for (const Range part : measured_parts(run.info.prompt_len))
    values.push_back(static_cast<double>(part.begin + part.end - 1) / 2);
  return values;
}

const DeclareMeasure declaration({.name = "parts", .place = 500},
                                 {{"part", "part", "1", "middle of a part of the prompt",
                                   "position; at most 128 parts of nearly equal length",
                                   Known{middles}}});

}  // namespace

std::vector<Range> measured_parts(int64_t entries) {
  const int64_t count = std::min(entries, kParts);
  std::vector<Range> parts;
  for (int64_t p = 0; p < count; ++p)
    parts.push_back({p * entries / count, (p + 1) * entries / count});
  return parts;
}

}  // namespace kvsim

namespace kvsim::measures::attention {
namespace {

constexpr std::array<int64_t, 6> kPercents = {1, 2, 5, 10, 20, 50};

VariableValues shares(const RunShape& /*run*/) {
  std::vector<double> values;
  for (const int64_t percent : kPercents) values.push_back(static_cast<double>(percent) / 100);
  return values;
}

/// How concentrated attention is (metrics.md 5.1). A sink's part is no entry's and not counted.
struct AttentionCdf : Measure {
  using Measure::Measure;

  MeasureNeeds needs() const override { return {.attention_columns = run().info.total_len}; }
  void start_rows(const MeasuredLayer& layer) override {
    held_.fill(Table<double>(layer.work.query_heads(), run().info.steps(), kUndefined));
  }
  void see_rows(const AttentionBlock& rows, int64_t first_step) override {
    parallel_for(rows.heads * rows.rows, [&](int64_t task) {
      const auto x = static_cast<int>(task / rows.rows);
      const int64_t r = task % rows.rows;
      const int64_t visible = rows.positions[r] + 1;
      const float* attention = rows.attention_row(x, r);
      std::vector<float> row(attention, attention + visible);
      double total = 0;
      for (const float a : row) total += static_cast<double>(a);
      if (total == 0) return;
      // From the widest share to the narrowest: each is found among the one before.
      auto end = row.end();
      for (size_t share = kPercents.size(); share-- > 0;) {
        const auto cut = row.begin() + (kPercents[share] * visible + 99) / 100;
        if (cut != end) std::nth_element(row.begin(), cut, end, std::greater<>());
        end = cut;
        double sum = 0;
        for (auto at = row.begin(); at != cut; ++at) sum += static_cast<double>(*at);
        held_[share](rows.kv_head * rows.heads + x, first_step + r) = sum / total;
      }
    });
  }
  void finish(const MeasuredLayer& layer, MeasureResults& results) override {
    for (int64_t s = 0; s < std::ssize(held_); ++s) {
      results.set("attention_cdf_mean", {layer.index, s}, mean(held_[s].values()));
      results.set("attention_cdf_p05", {layer.index, s}, percentile(held_[s].values(), 5));
    }
  }

 private:
  std::array<Table<double>, kPercents.size()> held_;  ///< of each share [Hq][T]
};
const RegisterMeasure<AttentionCdf> register_attention_cdf(
    {.name = "attention_cdf", .place = 520, .whole = true},
    {{"share", "share", "1", "share of the visible entries", "rounded up to whole entries",
      Known{shares}},
     {"attention_cdf_mean", "layer share", "1", "attention held by the largest entries",
      "share of a query's attention on its ceil(share * visible) largest entries, mean over heads "
      "and steps"},
     {"attention_cdf_p05", "layer share", "1",
      "attention held by the largest entries, percentile 5", "percentile 5 over heads and steps"}});

/// [owners][n] 1: dropped; merged entries are still there.
Table<uint8_t> dropped_entries(const KeptSets& kept, int64_t entries) {
  Table<uint8_t> gone(std::ssize(kept.owners), entries, 1);
  for (int64_t owner = 0; owner < gone.rows(); ++owner) {
    const auto row = gone.row(owner);
    for (const uint32_t i : kept.owners[owner]) row[i] = 0;
    if (kept.merged.empty()) continue;
    for (const uint32_t i : kept.merged[owner]) row[i] = 0;
  }
  return gone;
}

/// How many of the entries that later queries attend to most had been dropped (metrics.md 5.2); of
/// equal ones the more recent count.
struct LateImportance : Measure {
  using Measure::Measure;

  MeasureNeeds needs() const override { return {.attention_columns = run().info.prompt_len}; }
  void start_rows(const MeasuredLayer& layer) override {
    const int64_t heads = layer.work.query_heads(), entries = run().info.prompt_len;
    dropped_.clear();
    for (size_t o = 0; o < layer.replay.count(); ++o)
      dropped_.push_back(dropped_entries(*layer.replay.outcome(o).kept, entries));
    top_ = std::max<int64_t>(1, entries / 5);
    hits_ = Table<int64_t>(std::ssize(dropped_), heads);
    ever_ = Table<uint8_t>(heads, entries);
  }
  void see_rows(const AttentionBlock& rows, int64_t /*first_step*/) override {
    parallel_for(rows.heads, [&](int64_t x) {
      const int64_t head = rows.kv_head * rows.heads + x;
      std::vector<uint32_t> order(run().info.prompt_len);
      for (int64_t r = 0; r < rows.rows; ++r) {
        const float* row = rows.attention_row(static_cast<int>(x), r);
        std::iota(order.begin(), order.end(), 0u);
        std::nth_element(order.begin(), order.begin() + (top_ - 1), order.end(), best_first(row));
        const std::span best(order.data(), top_);
        for (const uint32_t i : best) ever_(head, i) = 1;
        for (int64_t o = 0; o < hits_.rows(); ++o) {
          const auto gone = of_head(o, head);
          for (const uint32_t i : best) hits_(o, head) += gone[i];
        }
      }
    });
  }
  void finish(const MeasuredLayer& layer, MeasureResults& results) override {
    layer.for_each_cell([&](ReplayCell cell, size_t o) {
      write(static_cast<int64_t>(o), {cell.record, cell.budget, layer.index}, results);
    });
  }

 private:
  std::span<const uint8_t> of_head(int64_t outcome, int64_t head) const {
    const Table<uint8_t>& owners = dropped_[outcome];
    return owners.row(head * owners.rows() / hits_.columns());
  }
  void write(int64_t outcome, std::initializer_list<int64_t> at, MeasureResults& results) const {
    const auto seen = static_cast<double>(top_ * run().info.steps());
    std::vector<double> share, chance, recall;
    for (int64_t head = 0; head < ever_.rows(); ++head) {
      const auto gone = of_head(outcome, head);
      double size = 0, found = 0;
      for (int64_t i = 0; i < ever_.columns(); ++i) {
        size += gone[i];
        found += gone[i] & ever_(head, i);
      }
      share.push_back(static_cast<double>(hits_(outcome, head)) / seen);
      chance.push_back(size / static_cast<double>(ever_.columns()));
      recall.push_back(size == 0 ? kUndefined : found / size);
    }
    results.set("late_share", at, mean(share));
    results.set("late_share_chance", at, mean(chance));
    results.set("late_recall", at, mean(recall));
  }

  std::vector<Table<uint8_t>> dropped_;  ///< [outcome] each [owners][n]
  int64_t top_ = 1;                      ///< entries that count as attended to most
  Table<int64_t> hits_;                  ///< [outcome][Hq] dropped ones among them, over all steps
  Table<uint8_t> ever_;                  ///< [Hq][n] 1: among them at some step
};
const RegisterMeasure<LateImportance> register_late_importance(
    {.name = "late_importance", .place = 530, .whole = true},
    {{"late_share", kOverLayers, "1", "dropped share of what later queries attend to most",
      "share of a query's max(1, floor(0.2 n)) prompt entries of largest attention that were "
      "dropped, mean over heads and steps"},
     {"late_share_chance", kOverLayers, "1", "late_share of random eviction",
      "dropped entries / n, mean over heads"},
     {"late_recall", kOverLayers, "1",
      "share of dropped entries that some later query attends to most",
      "dropped entries that are among those of any step / dropped entries, mean over heads"}});

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
const RegisterMeasure<Locality> register_locality(
    {.name = "locality", .place = 540, .whole = true},
    {{"locality", kHead, "1", "locality of attention in time",
      "1 - locality_within / locality_permuted: 0 for white noise, near 1 for "
      "slow change; NaN for fewer than 32 steps"},
     {"locality_within", kHead, "1", "variance within windows over total variance",
      "mean over windows of 16 steps, summed over prompt entries"},
     {"locality_permuted", kHead, "1", "the same for random orders of the steps",
      "mean of 20 orders"}});

/// [n] L2 norms of the keys of a KV head.
std::vector<double> key_norms(const LayerTrace& layer, int kv_head) {
  Table<float> keys(layer.info->prompt_len, layer.k.dim(2));
  layer.k.read(kv_head, 0, keys.rows(), keys.data());
  std::vector<double> norms;
  for (int64_t i = 0; i < keys.rows(); ++i) {
    double squares = 0;
    for (const float x : keys.row(i)) squares += static_cast<double>(x) * static_cast<double>(x);
    norms.push_back(std::sqrt(squares));
  }
  return norms;
}

/// Norms of keys, where they are low, and whether low ones get the attention, which is what Knorm
/// relies on (The Pitfalls, appendix J.5).
struct KeyNorm : Measure {
  using Measure::Measure;

  MeasureNeeds needs() const override { return {.attention_columns = run().info.prompt_len}; }
  void start_rows(const MeasuredLayer& layer) override {
    attention_ = Table<double>(layer.work.query_heads(), run().info.prompt_len);
  }
  void see_rows(const AttentionBlock& rows, int64_t /*first_step*/) override {
    parallel_for(rows.heads, [&](int64_t x) {
      const auto sum = attention_.row(rows.kv_head * rows.heads + x);
      for (int64_t r = 0; r < rows.rows; ++r) {
        const float* row = rows.attention_row(static_cast<int>(x), r);
        for (size_t i = 0; i < sum.size(); ++i) sum[i] += static_cast<double>(row[i]);
      }
    });
  }
  void finish(const MeasuredLayer& layer, MeasureResults& results) override {
    const std::vector<Range> parts = measured_parts(run().info.prompt_len);
    const auto positions = ascending<double>(run().info.prompt_len);
    const int group = layer.work.group_size();
    for (int kv = 0; kv < layer.work.kv_heads(); ++kv) {
      const std::vector<double> norms = key_norms(layer.work.trace(), kv);
      for (int64_t p = 0; p < std::ssize(parts); ++p)
        results.set("key_norm", {layer.index, kv, p},
                    mean(std::span(norms).subspan(parts[p].begin, parts[p].size())));
      results.set("key_norm_position", {layer.index, kv}, spearman(norms, positions));
      for (int h = kv * group; h < (kv + 1) * group; ++h) {
        const auto attention = attention_.row(h);
        results.set("key_norm_attention_pearson", {layer.index, h}, pearson(norms, attention));
        results.set("key_norm_attention_spearman", {layer.index, h}, spearman(norms, attention));
      }
    }
  }

 private:
  Table<double> attention_;  ///< [Hq][n] sum over steps
};
const RegisterMeasure<KeyNorm> register_key_norm(
    {.name = "key_norm", .place = 560, .whole = true},
    {{"key_norm", "layer kv_head part", "model units", "norm of the keys",
      "L2 norm, mean over the part's entries"},
     {"key_norm_position", "layer kv_head", "1", "rank correlation of key norm and position",
      "Spearman over prompt entries; positive: early keys are the short ones"},
     {"key_norm_attention_pearson", "layer head", "1",
      "correlation of key norm and later attention",
      "Pearson of the norm and the mean attention over steps, over prompt entries"},
     {"key_norm_attention_spearman", "layer head", "1",
      "rank correlation of key norm and later attention", "the same by ranks"}});

}  // namespace
}  // namespace kvsim::measures::attention
