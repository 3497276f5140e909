#include "analysis/formulas.hpp"
#include "analysis/measure.hpp"
#include "sim/policy/prepared_record.hpp"
#include "sim/policy/scoring.hpp"
#include "sim/stages/indicator/indicator.hpp"

namespace kvsim {

BestDrift::BestDrift(std::vector<int64_t> best, int query_heads, int64_t rows)
    : best_(std::move(best)), count_(best_.size(), Table<int64_t>(query_heads, rows)),
      sum_(best_.size(), Table<int64_t>(query_heads, rows)) {}

void BestDrift::add(int query_head, int64_t row, std::span<const double> values) {
  auto order = ascending<uint32_t>(std::ssize(values));
  std::ranges::sort(order, best_first(values));
  for (size_t b = 0; b < best_.size(); ++b) {
    const int64_t count = std::clamp<int64_t>(best_[b], 0, std::ssize(order));
    count_[b](query_head, row) = count;
    sum_[b](query_head, row) = std::accumulate(order.begin(), order.begin() + count, int64_t{0});
  }
}

double BestDrift::mean_position(size_t budget, int query_head, int64_t row) const {
  const int64_t count = count_[budget](query_head, row);
  if (count == 0) return kUndefined;
  return static_cast<double>(sum_[budget](query_head, row)) / static_cast<double>(count);
}

PositionDrift BestDrift::drift(size_t budget, int query_head) const {
  const auto counts = count_[budget].row(query_head), sums = sum_[budget].row(query_head);
  PositionDrift drift(std::ssize(sums));
  for (int64_t r = 0; r < std::ssize(sums); ++r) drift.add(r, counts[r], sums[r]);
  return drift;
}

int64_t adaptive_width(const PositionDrift& drift, const Decimal& beta) {
  constexpr int64_t kLeast = 5;
  return std::max(kLeast, 2 * drift.floor_size_over(beta) + 1);
}

int64_t adaptive_shift(const PositionDrift& drift, const Decimal& beta) {
  return drift.floor_over(beta) + (drift.sign() < 0 ? 1 : 0);
}

}  // namespace kvsim

namespace kvsim::measures::drift {
namespace {

constexpr const char* kRecord = "restkv";
/// Indicators whose rows are read, in the order of the results.
const std::vector<std::string> kIndicators = {"output-change", "attention"};
const Decimal kBeta(2000);  // tokens, the paper's
constexpr const char* kDrift = "indicator budget layer head";

/// The window of `restkv` (policies.md 5.5), at a budget at which something is evicted.
struct Window {
  Window(const TraceInfo& info, const std::vector<int>& layers)
      : preparation(info, layers, budgets), record(preparation.prepare(Record::parse(kRecord))),
        segment(preparation.plans()[record.budgets.front().plan].segments.front()) {}

  std::vector<Budget> budgets = {Budget::parse("0.5")};
  Preparation preparation;
  PreparedRecord record;
  const Segment& segment;
};

VariableValues indicators(const RunShape& /*run*/) { return kIndicators; }
VariableValues rows_of_window(const RunShape& run) {
  return Window(run.info, run.info.layers).segment.positions;
}

/// One layer by the observing queries of the window, row by row.
struct WindowReader : RowConsumer {
  /// `best`: K of each budget.
  WindowReader(LayerWork& work, const Window& window, const std::vector<int64_t>& best)
      : RowConsumer(window.segment), parts_(measured_parts(work.entries())) {
    for (const std::string& name : kIndicators)
      rows_.push_back(dynamic_cast<const RowIndicator&>(Kinds<Indicator>::find(name))
                          .rows(work, window.record.settings, segment()));
    drift.assign(kIndicators.size(), BestDrift(best, work.query_heads(), segment().rows()));
    heads_.assign(work.query_heads(), Table<double>(segment().rows(), std::ssize(parts_)));
    run_consumers(work, {this});
  }

  AttentionPass wanted() const override {
    AttentionPass pass{.positions = segment().positions};
    pass.logits = pass.outputs = true;
    return pass;
  }
  void start(const AttentionBlock& block, int64_t) override {
    for (const auto& rows : rows_) rows->start(block);
  }
  int tasks(const AttentionBlock& block) const override { return block.heads; }
  void run(const AttentionBlock& block, int64_t first_row, int task) override {
    const int head = block.kv_head * block.heads + task;
    std::vector<double> row(segment().candidates.size());
    for (int64_t r = 0; r < block.rows; ++r)
      for (size_t k = 0; k < rows_.size(); ++k) {
        rows_[k]->row(block, task, r, segment().candidates, row);
        drift[k].add(head, first_row + r, row);
        if (k == 0) add_parts(row, heads_[head].row(first_row + r));
      }
  }

  /// Output change [rows][parts], mean over heads and the part's candidates; NaN where it has none.
  /// Heads are added in their order, whatever thread they were read by.
  Table<double> map() const {
    Table<double> mean(heads_.front().rows(), heads_.front().columns());
    for (size_t i = 0; i < mean.values().size(); ++i) {
      for (const Table<double>& head : heads_) mean.values()[i] += head.values()[i];
      mean.values()[i] /= static_cast<double>(heads_.size());
    }
    return mean;
  }

  std::vector<BestDrift> drift;  ///< per indicator, [budget] inside

 private:
  void add_parts(std::span<const double> row, std::span<double> parts) const {
    for (size_t p = 0; p < parts.size(); ++p) {
      const int64_t end = std::min(parts_[p].end, segment().candidates.end);
      double sum = 0;
      for (int64_t i = parts_[p].begin; i < end; ++i) sum += row[i];
      const int64_t size = end - parts_[p].begin;
      parts[p] = size > 0 ? sum / static_cast<double>(size) : kUndefined;
    }
  }

  std::vector<Range> parts_;
  std::vector<std::unique_ptr<IndicatorRows>> rows_;
  std::vector<Table<double>> heads_;  ///< [Hq] each [rows][parts]
};

struct Drift : Measure {
  explicit Drift(const MeasureRun& run) : Measure(run), window_(run.info, run.options.layers) {
    const auto observing = std::ssize(window_.segment.positions);
    for (const Budget& budget : run.options.budgets)
      best_.push_back(std::max<int64_t>(budget.entries(run.info.prompt_len) - observing, 0));
  }

  void finish(const MeasuredLayer& layer, MeasureResults& results) override {
    const WindowReader seen(layer.work, window_, best_);
    results.copy("output_change_map", {layer.index}, seen.map().values());
    for (int64_t k = 0; k < std::ssize(seen.drift); ++k)
      for (size_t b = 0; b < best_.size(); ++b)
        for (int h = 0; h < layer.work.query_heads(); ++h) {
          const std::initializer_list<int64_t> at = {k, static_cast<int64_t>(b), layer.index, h};
          const PositionDrift drift = seen.drift[k].drift(b, h);
          results.set("drift", at, 0 - drift.value());  // positive: towards later tokens
          results.set("drift_width", at, static_cast<double>(adaptive_width(drift, kBeta)));
          results.set("drift_shift", at, static_cast<double>(adaptive_shift(drift, kBeta)));
          const auto positions = results.row("drift_position", at);
          for (int64_t r = 0; r < std::ssize(positions); ++r)
            positions[r] = seen.drift[k].mean_position(b, h, r);
        }
  }

 private:
  Window window_;
  std::vector<int64_t> best_;  ///< K of each budget
};
const RegisterMeasure<Drift> register_drift(
    {.name = "drift",
     .place = 550,
     .whole = true,
     .observes = [] { return std::vector<std::string>{kRecord}; }},
    {{"indicator", "indicator", "1", "what the rows of the window hold", "see `kvsim policies`",
      VariableType::text, Known{indicators}},
     {"row", "row", "1", "position of an observing query", "the window of `restkv`, n-32..n-1",
      VariableType::int64, Known{rows_of_window}},
     {"drift", kDrift, "tokens", "drift of the best entries",
      "mean position of the B - m best candidates, rear half of the window minus front half "
      "(ReST-KV Eq. 10)"},
     {"drift_width", kDrift, "count", "width of the adaptive window",
      "what follows from the drift with beta = 2000 and a least width of 5"},
     {"drift_shift", kDrift, "count", "shift of the adaptive window",
      "what follows from the drift with beta = 2000"},
     {"drift_position", "indicator budget layer head row", "1", "mean position of the best entries",
      "of one observing query; NaN if B <= m"},
     {"output_change_map", "layer row part", "model units",
      "output change over queries and positions",
      "indicator output-change, mean over query heads and the part's candidates"}});

}  // namespace
}  // namespace kvsim::measures::drift
