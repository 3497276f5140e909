#include "sim/policy/scoring.hpp"

namespace kvsim {

namespace {

/// The entries of one row, sorted into bins by the first bits of their scores. Sums over the best
/// need the order inside a bin only where the best end in it. One object per thread, used again.
class RowBins {
 public:
  void fill(std::span<const double> row) {
    bin_of_.resize(row.size());
    lowest_ = bins_.size();
    highest_ = 0;
    for (size_t i = 0; i < row.size(); ++i) {
      const uint16_t at = static_cast<uint16_t>(sortable_bits(row[i]) >> 48);
      bin_of_[i] = at;
      lowest_ = std::min<size_t>(lowest_, at);
      highest_ = std::max<size_t>(highest_, at);
      ++bins_[at].count;
      bins_[at].places += i;
    }
    at_ = highest_;
    above_ = 0;
    places_ = 0;
    lists_ = 0;
    cuts_.clear();
  }

  /// Asks for the `count` best of the row; counts come in ascending order.
  void cut(size_t variant, int64_t count) {
    while (above_ + static_cast<int64_t>(bins_[at_].count) < count) {
      above_ += bins_[at_].count;
      places_ += bins_[at_].places;
      --at_;
    }
    if (bins_[at_].list == 0) bins_[at_].list = ++lists_;
    cuts_.push_back({variant, count, count - above_, places_, bins_[at_].list - 1});
  }

  /// Calls visit(variant, how many best, sum of their numbers) for every cut; empties the bins.
  template <class Visit>
  void finish(std::span<const double> row, const Visit& visit) {
    std::vector<std::vector<uint32_t>> inside(lists_);
    for (size_t i = 0; i < row.size(); ++i)
      if (const uint32_t list = bins_[bin_of_[i]].list; list != 0)
        inside[list - 1].push_back(static_cast<uint32_t>(i));
    const auto first = bins_.begin();
    std::fill(first + static_cast<std::ptrdiff_t>(lowest_),
              first + static_cast<std::ptrdiff_t>(highest_) + 1, Bin{});
    for (const Cut& cut : cuts_) {
      auto& list = inside[cut.list];
      const auto end = list.begin() + cut.from_bin;
      std::nth_element(list.begin(), end - 1, list.end(), best_first(row));
      const uint64_t places = std::accumulate(list.begin(), end, cut.places);
      visit(cut.variant, cut.count, static_cast<int64_t>(places));
    }
  }

 private:
  struct Bin {
    uint32_t count = 0;
    uint32_t list = 0;    // 1 + number of the list its entries are wanted in; 0: none
    uint64_t places = 0;  // sum of the entries' numbers
  };
  struct Cut {
    size_t variant;
    int64_t count;
    int64_t from_bin;  // how many of them are in the bin where they end
    uint64_t places;   // sum over the better bins
    uint32_t list;
  };
  std::vector<Bin> bins_ = std::vector<Bin>(size_t{1} << 16);  // all empty between rows
  std::vector<uint16_t> bin_of_;
  size_t lowest_ = 0, highest_ = 0, at_ = 0;
  int64_t above_ = 0;
  uint64_t places_ = 0;
  uint32_t lists_ = 0;
  std::vector<Cut> cuts_;
};

/// Rows of scores in the making, for each thread: they are aggregated while they are near.
constexpr int64_t kMadeBytes = int64_t{1} << 20;

}  // namespace

DriftTracker::DriftTracker(std::vector<int64_t> best, int64_t rows)
    : best_(std::move(best)), ascending_(ascending<size_t>(std::ssize(best_))),
      counts_(rows, std::ssize(best_)), sums_(rows, std::ssize(best_)) {
  std::stable_sort(ascending_.begin(), ascending_.end(),
                   [this](size_t a, size_t b) { return best_[a] < best_[b]; });
}

void DriftTracker::add(int64_t j, std::span<const double> row) {
  static thread_local RowBins bins;
  if (row.empty()) return;
  bins.fill(row);
  for (const size_t variant : ascending_)
    if (best_[variant] > 0) bins.cut(variant, std::min(best_[variant], std::ssize(row)));
  const auto counts = counts_.row(j), sums = sums_.row(j);
  bins.finish(row, [&](size_t variant, int64_t count, int64_t sum) {
    counts[variant] = count;
    sums[variant] = sum;
  });
}

PositionDrift DriftTracker::drift(size_t variant) const {
  PositionDrift drift(sums_.rows());
  const auto column = static_cast<int64_t>(variant);
  for (int64_t j = 0; j < sums_.rows(); ++j) drift.add(j, counts_(j, column), sums_(j, column));
  return drift;
}

namespace {

/// indicator -> {smooth, aggregate, group in the order of `order`} over one segment, for
/// indicators that have queries. Writes [owners][n] per variant.
class SegmentScorer : public RowConsumer {
 public:
  /// `results`: grouped scores, one table [owners][n] per variant of the plan.
  SegmentScorer(LayerWork& work, const ScorePlan& plan, const Segment& segment, RowsOfLayer& rows,
                std::vector<Table<double>>& results)
      : RowConsumer(segment, plan.looks_ahead()), work_(work), plan_(plan),
        settings_(plan.settings), indicator_(chosen<Indicator>(settings_)),
        aggregate_(chosen<Aggregate>(settings_)), smooth_(chosen<Smooth>(settings_)),
        heads_(work, settings_), results_(results),
        rows_(rows.rows(settings_, segment, waits_for_layer())), made_(rows.memory()),
        after_(plan.steps.after_aggregate()) {
    const auto columns = static_cast<size_t>(segment.candidates.size());
    if (heads_.whole_layer() && !groups_before())
      layer_rows_.assign(plan.free_slots.size(), Row(columns, 0.0));
    if (waits_for_layer()) made_ = std::make_shared<Buffer<double>>();  // for the next KV head
  }

  AttentionPass wanted() const override {
    AttentionPass pass = observed();
    pass.logits = indicator_.use().logits;
    pass.outputs = indicator_.use().outputs;
    pass.rows_outer = waits_for_layer();
    if (pass.outputs && !segment().positions.empty())  // what the output is made of, all of it
      pass.columns = std::max(work_.entries(), segment().positions.back() + 1);
    return pass;
  }
  RowUse use() const override {
    RowUse use{.terms = rows_->summed(),
               .grouping = groups_before() ? &heads_ : nullptr,
               .each_row = smooth_.drift() != Drift::none || smooths_before()};
    const auto aggregation = aggregate_.start(settings_, segment().rows(),
                                              segment().candidates.size());
    if (const auto weights = aggregation->weights(); !weights.empty())
      use.weights.emplace(weights.begin(), weights.end());
    return use;
  }
  void take_sums(const TakenSums& taken) override {
    const Table<double>& sums = *taken.front();
    const Range candidates = segment().candidates;
    std::vector<int64_t> visible_to;
    for (const int64_t position : segment().positions) visible_to.push_back(visible(position));
    for (int kv_head = 0; kv_head < work_.kv_heads(); ++kv_head) {
      const int heads = work_.group_size();
      std::vector<Row> of_head(heads);
      parallel_for(heads, [&](int64_t u) {
        const auto query_head = static_cast<int>(kv_head * heads + u);
        const auto from = sums.row(query_head).subspan(candidates.begin, candidates.size());
        Row& sum = of_head[u];
        sum.assign(from.begin(), from.end());
        rows_->summed()->scale(query_head, candidates, sum);
      });
      if (groups_before()) {  // the sum of the group's rows is the group of the heads' sums
        Row group(of_head.front().size());
        for (int u = 0; u < heads; ++u) heads_.add(kv_head, u, of_head[u], group);
        of_head.assign(1, std::move(group));
      }
      open_units(static_cast<int>(of_head.size()));
      for (size_t u = 0; u < of_head.size(); ++u)
        units_[u].aggregation->add_sum(of_head[u], visible_to);
      close_kv_head(kv_head);
    }
  }
  void start(const AttentionBlock& block, int64_t first_row) override {
    rows_->start(block, first_row);
    const bool first_of_unit = first_row == 0 &&
                               (!waits_for_layer() || heads_.begins(block.kv_head));
    if (first_of_unit) open_units(units());
    if (!rows_in_place())
      made_->reserve(std::ssize(units_) * rows_at_once(block) * segment().candidates.size());
  }
  int tasks(const AttentionBlock&) const override { return 0; }  // end() shares the work out
  void run(const AttentionBlock&, int64_t, int) override {}
  void end(const AttentionBlock& block, int64_t first_row) override {
    const int64_t step = rows_at_once(block);
    for (int64_t begin = 0; begin < block.rows; begin += step) {
      making_ = {begin, std::min(block.rows, begin + step)};
      parallel_for(std::ssize(units_) * making_.size(), [&](int64_t task) {
        make_row(block, first_row, task / making_.size(), making_.begin + task % making_.size());
      });
      if (complete(block)) fold(block, first_row);
    }
    if (complete(block) && first_row + block.rows == segment().own_rows())
      close_kv_head(block.kv_head);
  }

 private:
  using Row = std::vector<double>;
  /// One row of scores in the making: a head, a group, or the layer.
  struct Unit {
    std::unique_ptr<Aggregation> aggregation;
    std::unique_ptr<DriftTracker> drift;
  };

  /// Are rows grouped, or smoothed, before they are aggregated?
  bool groups_before() const {
    return heads_.combines() && plan_.steps.before_aggregate(ScoringStep::group);
  }
  bool smooths_before() const {
    return plan_.steps.before_aggregate(ScoringStep::smooth) && !smooth_.changes_nothing();
  }
  /// Are rows grouped over all KV heads before they are aggregated?
  bool waits_for_layer() const { return groups_before() && heads_.whole_layer(); }
  /// Have the rows of the block all their heads?
  bool complete(const AttentionBlock& block) const {
    return !waits_for_layer() || heads_.complete(block.kv_head);
  }
  /// Rows of a KV head that are aggregated.
  int units() const { return groups_before() ? 1 : heads_.rows_per_query(); }
  /// Are rows taken from where the indicator has them, without a copy?
  bool rows_in_place() const {
    return !groups_before() && !smooths_before() && rows_->stored() != nullptr;
  }
  /// Rows of a block that are made before they are aggregated.
  int64_t rows_at_once(const AttentionBlock& block) const {
    if (rows_in_place() || waits_for_layer()) return block.rows;
    const int64_t bytes = std::ssize(units_) * segment().candidates.size() *
                          static_cast<int64_t>(sizeof(double));
    return std::clamp<int64_t>(kMadeBytes * threads() / std::max<int64_t>(bytes, 1), 1, block.rows);
  }
  std::span<double> made(size_t unit, int64_t row) const {
    const int64_t columns = segment().candidates.size();
    const int64_t number = static_cast<int64_t>(unit) * making_.size() + row - making_.begin;
    return {made_->data() + number * columns, static_cast<size_t>(columns)};
  }
  std::span<const double> made_row(const AttentionBlock& block, size_t unit, int64_t row) const {
    return rows_in_place() ? rows_->stored()->stored_row(block, static_cast<int>(unit), row)
                           : made(unit, row);
  }
  void open_units(int count) {
    const int64_t rows = segment().rows(), of_prompt = segment().prompt_rows();
    const int64_t columns = segment().candidates.size();
    const auto& join = chosen<Join>(settings_);
    const Row nothing(columns, 0.0);
    units_.clear();
    units_.resize(count);
    for (Unit& unit : units_) {
      if (join.joins())
        unit.aggregation = start_joined(
            settings_, aggregate_.start(settings_, of_prompt, columns),
            aggregate_.start(settings_, segment().probe_rows(), columns), of_prompt);
      else
        unit.aggregation = aggregate_.start(settings_, rows, columns);
      for (int64_t j = 0; j < segment().rows_before; ++j) {
        unit.aggregation->see(j, 0);
        unit.aggregation->add(j, 0, nothing);
      }
      if (smooth_.drift() != Drift::none)
        unit.drift = std::make_unique<DriftTracker>(plan_.free_slots, rows);
    }
  }
  void make_row(const AttentionBlock& block, int64_t first_row, size_t unit, int64_t row) {
    if (groups_before())
      make_group_row(block, row);
    else
      make_head_row(block, unit, row);
    if (smooth_.drift() == Drift::indicator && complete(block))
      units_[unit].drift->add(first_row + row, made_row(block, unit, row));
    if (smooth_.drift() == Drift::attention && !groups_before())
      follow_attention(block, unit, row, first_row + row);
  }
  void make_head_row(const AttentionBlock& block, size_t head, int64_t row) {
    if (rows_in_place()) return;
    const auto made = this->made(head, row);
    static thread_local Row plain;
    plain.resize(made.size());
    const std::span<double> to = smooths_before() ? plain : made;
    (*rows_)->row(block, static_cast<int>(head), row, segment().candidates, to);
    if (smooths_before()) smooth_.apply(settings_, PositionDrift(0), plain, made);
  }
  /// The heads of the block, added to those of blocks before where the whole layer is one unit.
  void make_group_row(const AttentionBlock& block, int64_t row) {
    const auto made = this->made(0, row);
    static thread_local Row plain, smoothed;
    plain.resize(made.size());
    smoothed.resize(made.size());
    const bool smooths_heads = smooths_before() && plan_.steps.starts_with(ScoringStep::smooth);
    for (int head = 0; head < block.heads; ++head) {
      (*rows_)->row(block, head, row, segment().candidates, plain);
      if (smooths_heads) smooth_.apply(settings_, PositionDrift(0), plain, smoothed);
      heads_.add(block.kv_head, head, smooths_heads ? smoothed : plain, made);
    }
    if (!smooths_before() || smooths_heads || !complete(block)) return;
    std::ranges::copy(made, plain.begin());
    smooth_.apply(settings_, PositionDrift(0), plain, made);
  }
  /// Hands the rows that were made to the aggregation: their order counts, that of columns does
  /// not.
  void fold(const AttentionBlock& block, int64_t first_row) {
    const int64_t columns = segment().candidates.size(), first = number(first_row);
    for (Unit& unit : units_)
      for (int64_t r = making_.begin; r < making_.end; ++r)
        unit.aggregation->see(first + r, visible(block.positions[r]));
    constexpr int64_t kColumns = 1024;  // of a part: what is aggregated stays near for all rows
    const int64_t parts = (columns + kColumns - 1) / kColumns;
    parallel_for(std::ssize(units_) * parts, [&](int64_t task) {
      const auto unit = static_cast<size_t>(task / parts);
      const int64_t begin = task % parts * kColumns;
      const auto count = static_cast<size_t>(std::min(kColumns, columns - begin));
      for (int64_t r = making_.begin; r < making_.end; ++r)
        units_[unit].aggregation->add(first + r, begin,
                                      made_row(block, unit, r).subspan(begin, count));
    });
  }
  void follow_attention(const AttentionBlock& block, size_t head, int64_t row, int64_t j) {
    const float* a = block.attention_row(static_cast<int>(head), row);
    const int64_t seen = std::min(work_.entries(), block.positions[row] + 1);
    static thread_local Row attention;
    attention.assign(a, a + seen);
    units_[head].drift->add(j, attention);
  }
  int64_t visible(int64_t position) const {
    if (indicator_.sees_all()) return segment().candidates.size();  // from behind the prompt
    return std::clamp<int64_t>(position + 1 - segment().candidates.begin, 0,
                               segment().candidates.size());
  }
  int64_t number(int64_t row) const {
    const int64_t after = row < std::ssize(segment().positions) ? 0 : segment().rows_after;
    return segment().rows_before + row + after;
  }
  void close_kv_head(int kv_head) {
    std::vector<Row> rows(units_.size());
    parallel_for(std::ssize(units_), [&](int64_t u) {
      Row& row = rows[u];
      const auto aggregation = std::move(units_[u].aggregation);
      row.assign(segment().candidates.size(), 0.0);
      const int64_t end = segment().prompt_rows();
      for (int64_t j = end - segment().rows_after; j < end; ++j) {
        aggregation->see(j, 0);
        aggregation->add(j, 0, row);
      }
      aggregation->finish(row);
    });
    if (rows_->aggregated())
      rows_->aggregated()->finish(kv_head * work_.group_size(), segment().candidates, rows);
    const int64_t variants = std::ssize(plan_.free_slots);
    if (variants == 1) return close_variant(kv_head, 0, std::move(rows));
    parallel_for(variants, [&](int64_t variant) { close_variant(kv_head, variant, rows); });
  }
  /// The stages after aggregation, for one KV head (or the layer) and one variant.
  void close_variant(int kv_head, size_t variant, std::vector<Row> rows) {
    for (const char step : after_) {
      if (step == ScoringStep::smooth) {
        for (size_t u = 0; u < rows.size(); ++u) smooth_into(variant, units_[u], rows[u]);
      } else if (heads_.combines()) {
        Row combined = heads_.whole_layer() ? layer_rows_[variant] : Row(rows[0].size());
        for (size_t u = 0; u < rows.size(); ++u)
          heads_.add(kv_head, static_cast<int>(u), rows[u], combined);
        if (heads_.whole_layer()) layer_rows_[variant] = combined;
        if (!heads_.complete(kv_head)) return;
        rows.assign(1, std::move(combined));
      }
    }
    for (size_t u = 0; u < rows.size(); ++u)
      write(variant, heads_.owners(kv_head, static_cast<int>(u)), rows[u]);
  }
  void smooth_into(size_t variant, const Unit& unit, Row& row) const {
    if (smooth_.changes_nothing()) return;
    Row smoothed(row.size());
    smooth_.apply(settings_, unit.drift ? unit.drift->drift(variant) : PositionDrift(0), row,
                  smoothed);
    row = std::move(smoothed);
  }
  void write(size_t variant, Range owners, std::span<const double> row) {
    for (int64_t owner = owners.begin; owner < owners.end; ++owner)
      std::copy(row.begin(), row.end(),
                results_[variant].row(owner).begin() + segment().candidates.begin);
  }

  LayerWork& work_;
  const ScorePlan& plan_;
  const Settings& settings_;
  const Indicator& indicator_;
  const Aggregate& aggregate_;
  const Smooth& smooth_;
  HeadGrouping heads_;
  std::vector<Table<double>>& results_;
  std::shared_ptr<SharedRows> rows_;
  std::shared_ptr<Buffer<double>> made_;  // [unit][making_][candidates] as they are aggregated
  Range making_;                          // rows of the block at work
  std::string after_;                     // what comes after aggregation
  std::vector<Unit> units_;               // of the KV head at work, or of the layer
  std::vector<Row> layer_rows_;           // per variant, heads combined so far (group=layer-mean)
};

}  // namespace

std::unique_ptr<RowConsumer> segment_scorer(LayerWork& work, const ScorePlan& plan,
                                            const Segment& segment, RowsOfLayer& rows,
                                            std::vector<Table<double>>& results) {
  return std::make_unique<SegmentScorer>(work, plan, segment, rows, results);
}

}  // namespace kvsim
