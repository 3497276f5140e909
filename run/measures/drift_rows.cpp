#include "run/measures/drift_rows.hpp"

#include <algorithm>
#include <limits>

#include "sim/policy/row_consumer.hpp"
#include "sim/stages/indicator/indicator.hpp"

namespace kvsim {
namespace {

constexpr const char* kRecord = "restkv";

/// Feeds the rows of every query head to the drifts of the indicators, and adds them to the map.
class WindowReader : public RowConsumer {
 public:
  WindowReader(LayerWork& work, const Settings& settings, const Segment& part,
               const std::vector<Range>& parts, WindowDynamics& seen)
      : RowConsumer(part), work_(work), parts_(parts), seen_(seen) {
    for (const std::string& name : DriftRows::indicators())
      rows_.push_back(Kinds<Indicator>::find(name).rows(work, settings, part));
    heads_.assign(static_cast<size_t>(work.query_heads()),
                  Table<double>(part.rows(), static_cast<int64_t>(parts.size())));
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
    std::vector<double> row(static_cast<size_t>(segment().candidates.size()));
    for (int64_t r = 0; r < block.rows; ++r) {
      for (size_t k = 0; k < rows_.size(); ++k) {
        rows_[k]->row(block, task, r, segment().candidates, row);
        seen_.drift[k].add(head, first_row + r, row);
        if (k == 0) add_parts(row, heads_[static_cast<size_t>(head)].row(first_row + r));
      }
    }
  }
  /// Heads are added in their order, whatever thread they were read by.
  void finish() {
    for (int64_t r = 0; r < seen_.map.rows(); ++r)
      for (int64_t p = 0; p < seen_.map.columns(); ++p) {
        double sum = 0;
        for (const Table<double>& head : heads_) sum += head(r, p);
        seen_.map(r, p) = sum / static_cast<double>(heads_.size());
      }
  }

 private:
  void add_parts(std::span<const double> row, std::span<double> parts) const {
    for (size_t p = 0; p < parts.size(); ++p) {
      const int64_t end = std::min(parts_[p].end, segment().candidates.end);
      double sum = 0;
      for (int64_t i = parts_[p].begin; i < end; ++i) sum += row[static_cast<size_t>(i)];
      const int64_t size = end - parts_[p].begin;
      parts[p] = size > 0 ? sum / static_cast<double>(size)
                          : std::numeric_limits<double>::quiet_NaN();
    }
  }

  LayerWork& work_;
  const std::vector<Range>& parts_;
  WindowDynamics& seen_;
  std::vector<std::unique_ptr<RowIndicator>> rows_;
  std::vector<Table<double>> heads_;  ///< [Hq] each [rows][parts]
};

}  // namespace

const std::vector<std::string>& DriftRows::indicators() {
  static const std::vector<std::string> names = {"output-change", "attention"};
  return names;
}

std::vector<std::string> DriftRows::records() { return {kRecord}; }

DriftRows::DriftRows(const TraceInfo& info, std::vector<int> layers,
                     const std::vector<Budget>& budgets, std::vector<Range> parts)
    : info_(info), layers_(std::move(layers)), budget_{Budget::parse("0.5")},
      preparation_(info_, layers_, budget_), record_(preparation_.prepare(Record::parse(kRecord))),
      parts_(std::move(parts)) {
  const auto window = static_cast<int64_t>(segment().positions.size());
  for (const Budget& budget : budgets)
    best_.push_back(std::max<int64_t>(budget.entries(info.prompt_len) - window, 0));
}

const Segment& DriftRows::segment() const {
  return preparation_.plans()[record_.budgets.front().plan].segments.front();
}

const std::vector<int64_t>& DriftRows::positions() const { return segment().positions; }

WindowDynamics DriftRows::of_layer(LayerWork& work) const {
  const int64_t rows = segment().rows();
  WindowDynamics seen;
  seen.drift.assign(indicators().size(), Drift(best_, work.query_heads(), rows));
  seen.map = Table<double>(rows, static_cast<int64_t>(parts_.size()));
  WindowReader reader(work, record_.settings, segment(), parts_, seen);
  run_consumers(work, {&reader});
  reader.finish();
  return seen;
}

}  // namespace kvsim
