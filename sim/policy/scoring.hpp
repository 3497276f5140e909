#pragma once
#include "sim/core/decimal.hpp"
#include "sim/policy/prepared_record.hpp"
#include "sim/stages/allocate/allocate.hpp"
#include "sim/stages/indicator/indicator.hpp"
#include "sim/stages/kind.hpp"
#include "sim/stages/stages.hpp"

namespace kvsim {

/// What a consumer makes of its rows, as far as it decides whether rows or sums are made for it:
/// rows of attention are shown one by one, or the backend adds them up and shows none, which takes
/// a fraction of the time. row_consumer.cpp decides, for all consumers.
struct RowUse {
  const SummedRows* terms =
      nullptr;  ///< its rows as terms of the backend's sums; null: they are not
  std::optional<std::vector<double>> weights = {};  ///< [M] of their sum; none: it is no such sum
  const HeadGrouping* grouping = nullptr;  ///< of heads, before rows are added up; null: none
  bool groups_layer = false;               ///< it adds up what is grouped over the whole layer, too
  bool squares = false;   ///< it takes sums of the groups' rows, and of their squares
  bool each_row = false;  ///< it looks at single rows: they are smoothed, or compared
};

/// The tables that the backend made of a RowUse: the sum; with `squares` that of groups, and that
/// of their squares.
using TakenSums = std::vector<const Table<double>*>;

/// Something that reads attention rows block by block: a record's scores, or a statistic. Blocks
/// of a KV head come in order of rows.
class RowConsumer {
 public:
  /// `looks_ahead`: the segment's queries may be later steps (oracles).
  explicit RowConsumer(const Segment& segment, bool looks_ahead = false)
      : segment_(segment), looks_ahead_(looks_ahead) {}
  virtual ~RowConsumer() = default;
  RowConsumer(const RowConsumer&) = delete;
  RowConsumer& operator=(const RowConsumer&) = delete;

  const Segment& segment() const { return segment_; }
  bool looks_ahead() const { return looks_ahead_; }
  virtual AttentionPass wanted() const { return observed(); }
  /// All queries of the segment.
  AttentionPass observed() const {
    return {.positions = segment_.positions,
            .look_ahead = looks_ahead_,
            .probe = segment_.probe,
            .probe_tokens = segment_.probe_tokens};
  }

  /// Where sums will do, no row is shown, and take_sums is called once. They may have more columns
  /// than the candidates.
  virtual RowUse use() const { return {}; }
  virtual void take_sums(const TakenSums&) {}

  virtual void start(const AttentionBlock& block, int64_t first_row) = 0;
  virtual int tasks(const AttentionBlock&) const { return 1; }
  /// Tasks of one block run in parallel; each must write to its own memory only.
  virtual void run(const AttentionBlock& block, int64_t first_row, int task) = 0;
  virtual void end(const AttentionBlock&, int64_t /*first_row*/) {}

 private:
  Segment segment_;
  bool looks_ahead_;
};

/// Feeds all consumers, with one pass for each distinct set of observing queries, and as
/// few as memory allows for sums.
void run_consumers(LayerWork& work, const std::vector<RowConsumer*>& consumers);

/// Rows of an indicator, which may be shared by several consumers: each block is prepared once for
/// all of them. What the rows can do is found out once.
class SharedRows {
 public:
  explicit SharedRows(std::unique_ptr<IndicatorRows> rows)
      : rows_(std::move(rows)), stored_(dynamic_cast<const StoredRows*>(rows_.get())),
        summed_(dynamic_cast<const SummedRows*>(rows_.get())),
        aggregated_(dynamic_cast<const AggregatedRows*>(rows_.get())) {}

  void start(const AttentionBlock& block, int64_t first_row) {
    const std::tuple<int, int64_t, int64_t> wanted{block.kv_head, first_row, block.rows};
    if (prepared_ == wanted) return;
    rows_->start(block);
    prepared_ = wanted;
  }
  const IndicatorRows* operator->() const { return rows_.get(); }
  const StoredRows* stored() const { return stored_; }  ///< null where they are not; so below
  const SummedRows* summed() const { return summed_; }
  const AggregatedRows* aggregated() const { return aggregated_; }

 private:
  std::unique_ptr<IndicatorRows> rows_;
  const StoredRows* stored_;
  const SummedRows* summed_;
  const AggregatedRows* aggregated_;
  std::tuple<int, int64_t, int64_t> prepared_{-1, -1, -1};  ///< KV head, first row, rows
};

/// The rows of one layer by all that they depend on.
class RowsOfLayer {
 public:
  explicit RowsOfLayer(LayerWork& work) : work_(work) {}
  /// Null for indicators without rows. `rows_outer`: of the pass that shows the blocks.
  std::shared_ptr<SharedRows> rows(const Settings& settings, const Segment& segment,
                                   bool rows_outer) {
    const auto& indicator = row_indicator(settings);
    // Rows can depend on nothing but what they are given: the values that name them.
    std::set<std::string> keys(indicator.info().keys.begin(), indicator.info().keys.end());
    keys.insert({"indicator", "queries"});
    const Settings given = settings.only(keys);
    // The pass decides in which order blocks come: it is shared by those who want the same one.
    const Name name{given.values(),
                    segment.candidates.begin,
                    segment.candidates.end,
                    segment.positions,
                    segment.probe,
                    segment.probe_tokens,
                    rows_outer};
    auto& found = rows_[name];
    if (found == nullptr)
      found = std::make_shared<SharedRows>(indicator.rows(work_, given, segment));
    return found;
  }
  /// Memory for whoever works on a block, until the next one does.
  std::shared_ptr<Buffer<double>> memory() { return memory_; }

 private:
  using Name = std::tuple<std::map<std::string, std::string>, int64_t, int64_t,
                          std::vector<int64_t>, int, std::vector<int64_t>, bool>;
  LayerWork& work_;
  std::shared_ptr<Buffer<double>> memory_ = std::make_shared<Buffer<double>>();
  std::map<Name, std::shared_ptr<SharedRows>> rows_;
};

/// Where the K best entries of the observing rows stand, early against late (ReST-KV Eq. 10).
class DriftTracker {
 public:
  /// `best`: the values of K to follow, one result each.
  DriftTracker(std::vector<int64_t> best, int64_t rows);
  /// Rows may come side by side, each once.
  void add(int64_t j, std::span<const double> row);
  PositionDrift drift(size_t variant) const;  ///< Delta; 0 if K = 0 or there is one row

 private:
  std::vector<int64_t> best_;
  std::vector<size_t> ascending_;  // variants by K
  Table<int64_t> counts_;          // [rows][variants] how many best a row has
  Table<int64_t> sums_;            // [rows][variants] sum of their positions
};

/// Standard deviation of the grouped row over the queries that see each entry (RoCo, std_keep).
std::unique_ptr<RowConsumer> deviation_consumer(LayerWork& work, const Settings& settings,
                                                const Segment& segment, Table<double>& deviation);

/// indicator -> {smooth, aggregate, group in the order of `order`} over one segment, for
/// indicators that have queries. `results`: grouped scores, one table [owners][n] per variant of
/// the plan, to which it writes.
std::unique_ptr<RowConsumer> segment_scorer(LayerWork& work, const ScorePlan& plan,
                                            const Segment& segment, RowsOfLayer& rows,
                                            std::vector<Table<double>>& results);

/// Runs the scoring stages of all plans over one layer. Plans that observe with the same queries
/// share one pass over the attention. One result for each plan and variant.
std::vector<std::vector<std::shared_ptr<ScoredLayer>>> score_layer(
    LayerWork& work, const SideFiles& files, uint64_t seed,
    const std::vector<const ScorePlan*>& plans);

}  // namespace kvsim
