#include <Eigen/Core>

#include "sim/stages/indicator/indicator.hpp"
#include "sim/stages/stages.hpp"

namespace kvsim::stages::indicator::output_change {

/// A squared distance below this share of its parts is taken from the difference itself.
constexpr double kCancelled = 1e-8;

/// Least entries of each thread whose products with outputs are held at a time.
constexpr int64_t kEntries = 128;
/// Columns of a row that are worked on together, while they are in the first-level cache.
constexpr int64_t kColumns = 512;

/// x G y^T.
double inner(std::span<const double> x, const Table<double>& gram, std::span<const double> y) {
  double sum = 0;
  for (int64_t r = 0; r < std::ssize(x); ++r) {
    const auto row = gram.row(r);
    double of_row = 0;
    for (size_t c = 0; c < y.size(); ++c) of_row += row[c] * y[c];
    sum += x[r] * of_row;
  }
  return sum;
}

/// One head's output at one query. The odds A/(1-A) times (z - v_i) are the output's change; where
/// an entry holds most of the attention, 1-A and z - v_i are both lost to rounding; there
/// (1-A)^-1 (z - v_i) = (mean of everything else) - v_i is taken from the other entries' own sum.
struct HeadRow {
  std::span<const double> output;  // z
  int64_t heavy = -1;              // the entry with A >= 1/2, if any
  std::vector<double> rest;        // mean of everything else, for the heavy entry
  bool alone = false;              // nothing but the heavy entry is visible
};

/// Two heads a <= b of a unit. What is the same for (a, b) and (b, a) is made once.
struct PairOfUnit {
  int a, b;
  double times() const { return a == b ? 1 : 2; }
};

/// Rows of ReST-KV Eq. 7, ||odds * (z - v_i) W^h||, for a head or summed inside the norm over the
/// heads that share the entry (joint). A *unit* is what is summed: one head, or all of the group.
///
/// With G_ab = W^a (W^b)^T the square is the sum over pairs a <= b of heads of the unit of
///   odds_a odds_b (z_a G_ab z_b - (z_a G_ab + z_b G_ba) v_i + v_i G_ab v_i),
/// twice where a < b. The second term is one matrix product for all rows and entries, and the last
/// one is known for all rows.
struct OutputChangeRows : StoredRows {
  OutputChangeRows(LayerWork& work, const Segment& segment, bool look_ahead, bool joint)
      : StoredRows(segment.candidates), work_(work), look_ahead_(look_ahead), joint_(joint) {}

  void start(const AttentionBlock& block) override {
    kv_head_ = block.kv_head;
    size_ = joint_ ? block.heads : 1;
    find_pairs(block);
    find_rows(block);
    turn_outputs(block);
    find_rests(block);
    stored_.reserve(block.heads / size_ * block.rows * candidates_.size());
    const int64_t together = kEntries * threads();
    const int64_t products = work_.backend().values_at_once() / 4;  // beside others
    const int64_t step = std::max(together, products / turned_.rows() / together * together);
    products_.reserve(turned_.rows() * std::min(step, candidates_.size()));
    for (int64_t begin = candidates_.begin; begin < candidates_.end; begin += step)
      score_tile(block, {begin, std::min(candidates_.end, begin + step)});
  }

 private:
  static int64_t visible(const AttentionBlock& block, int64_t row) {
    return std::min(block.columns, block.positions[row] + 1);
  }
  const HeadRow& head_row(const AttentionBlock& block, int head, int64_t row) const {
    return rows_[head * block.rows + row];
  }

  void find_pairs(const AttentionBlock& block) {
    const int first = block.kv_head * block.heads;
    pairs_.clear();
    metrics_.clear();
    for (int a = 0; a < size_; ++a)
      for (int b = a; b < size_; ++b) pairs_.push_back({a, b});
    for (int unit = first; unit < first + block.heads; unit += size_)
      for (const auto [a, b] : pairs_) metrics_.push_back(&work_.output_metric(unit + a, unit + b));
  }
  /// Of pair number `pair` of the unit whose first head is `first`.
  size_t at(int first, size_t pair) const {
    return static_cast<size_t>(first / size_) * pairs_.size() + pair;
  }

  void find_rows(const AttentionBlock& block) {
    outputs_.assign(block.outputs.begin(), block.outputs.end());
    rows_.assign(block.heads * block.rows, {});
    const auto dv = static_cast<size_t>(work_.value_dim());
    parallel_for(std::ssize(rows_), [&](int64_t index) {
      HeadRow& own = rows_[index];
      own.output = std::span(outputs_).subspan(static_cast<size_t>(index) * dv, dv);
      const int64_t row = index % block.rows;
      const float* a = block.attention_row(static_cast<int>(index / block.rows), row);
      const float* top = std::max_element(a, a + visible(block, row));
      if (*top >= 0.5f) own.heavy = top - a;
    });
  }

  /// z_a G_ab + z_b G_ba and z_a G_ab z_b.
  void turn_outputs(const AttentionBlock& block) {
    using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
    const int64_t rows = block.rows, dv = work_.value_dim();
    turned_ = Table<double>(std::ssize(metrics_) * rows, dv);
    forms_.resize(turned_.rows());
    parallel_for(std::ssize(metrics_), [&](int64_t index) {
      const auto [a, b] = pairs_[static_cast<size_t>(index) % pairs_.size()];
      const int64_t first = index / std::ssize(pairs_) * size_;
      const Eigen::Map<const Matrix> of_a(&outputs_[(first + a) * rows * dv], rows, dv),
          of_b(&outputs_[(first + b) * rows * dv], rows, dv),
          gram(metrics_[index]->gram.data(), dv, dv);
      Eigen::Map<Matrix> turned(turned_.row(index * rows).data(), rows, dv);
      turned.noalias() = of_a * gram;
      Eigen::Map<Eigen::VectorXd>(&forms_[index * rows],
                                  rows) = turned.cwiseProduct(of_b).rowwise().sum();
      if (a == b)
        turned *= 2;
      else
        turned.noalias() += of_b * gram.transpose();
    });
  }

  /// The queries of a head with the same heavy entry are attended to beside it together.
  void find_rests(const AttentionBlock& block) {
    std::map<std::pair<int, int64_t>, std::vector<int64_t>> rows;  // of a head and a heavy entry
    for (int head = 0; head < block.heads; ++head)
      for (int64_t row = 0; row < block.rows; ++row)
        if (const int64_t heavy = head_row(block, head, row).heavy; heavy >= 0)
          rows[{head, heavy}].push_back(row);
    const std::vector<std::pair<std::pair<int, int64_t>, std::vector<int64_t>>> all(rows.begin(),
                                                                                    rows.end());
    parallel_for(std::ssize(all), [&](int64_t index) {
      const auto& [of, own] = all[index];
      find_rest(block, of.first, static_cast<uint32_t>(of.second), own);
    });
  }

  /// Stored queries behind rows of the block.
  std::vector<int64_t> stored_rows(const AttentionBlock& block,
                                   const std::vector<int64_t>& rows) const {
    const std::vector<int64_t>& of_block = block.of_probe() ? block.tokens : block.positions;
    std::vector<int64_t> own;
    for (const int64_t row : rows) own.push_back(of_block[row]);
    return block.of_probe() ? own : stored_queries(work_, own, look_ahead_);
  }

  void find_rest(const AttentionBlock& block, int head, uint32_t heavy,
                 const std::vector<int64_t>& rows) {
    const LayerTrace& seen = block.of_probe() ? work_.probe_part(block.probe, block.part).layer
                                              : work_.trace();
    const RestAttention rest = rest_attention(work_.backend(), seen,
                                              kv_head_ * work_.group_size() + head,
                                              stored_rows(block, rows), {&heavy, 1});
    for (int64_t r = 0; r < std::ssize(rows); ++r) {
      HeadRow& own = rows_[head * block.rows + rows[r]];
      own.alone = rest.log_mass[r] == -INFINITY;
      const auto mean = rest.mean.row(r);
      own.rest.assign(mean.begin(), mean.end());
    }
  }

  void score_tile(const AttentionBlock& block, Range tile) {
    work_.backend().value_products(work_.trace(), kv_head_, turned_.data(), turned_.rows(), tile,
                                   products_.data());
    parallel_for(block.heads / size_ * block.rows, [&](int64_t index) {
      const int first = static_cast<int>(index / block.rows) * size_;
      for (int64_t begin = tile.begin; begin < tile.end; begin += kColumns)
        score_row(block, first, index % block.rows, tile,
                  {begin, std::min(tile.end, begin + kColumns)});
    });
  }

  /// Some columns of a tile of one row of the unit whose first head is `first`.
  void score_row(const AttentionBlock& block, int first, int64_t row, Range tile, Range columns) {
    const auto width = static_cast<size_t>(columns.size());
    static thread_local Table<double> odds;
    if (odds.rows() < size_) odds = Table<double>(size_, kColumns);
    for (int a = 0; a < size_; ++a) {
      const float* attention = block.attention_row(first + a, row) + columns.begin;
      const auto to = odds.row(a);
      for (size_t i = 0; i < width; ++i) {
        const double x = static_cast<double>(attention[i]);
        to[i] = x / (1 - x);
      }
    }
    double squares[kColumns] = {}, parts[kColumns] = {};
    for (size_t p = 0; p < pairs_.size(); ++p) {
      const PairOfUnit pair = pairs_[p];
      const auto odds_a = odds.row(pair.a), odds_b = odds.row(pair.b);
      const int64_t number = static_cast<int64_t>(at(first, p)) * block.rows + row;
      const double* product = products_.data() + number * tile.size() + columns.begin - tile.begin;
      const double* form = metrics_[at(first, p)]->forms.data() + columns.begin;
      const double own = forms_[number], times = pair.times();
      for (size_t i = 0; i < width; ++i)
        squares[i] += times * odds_a[i] * odds_b[i] * (own - product[i] + form[i]);
      for (size_t i = 0; i < width && pair.a == pair.b; ++i)
        parts[i] += odds_a[i] * odds_a[i] * (own + form[i]);
    }
    double* const out = stored_.data() + (first / size_ * block.rows + row) * candidates_.size() +
                        (columns.begin - candidates_.begin);
    int64_t cancelled = 0;
    for (size_t i = 0; i < width; ++i) {
      out[i] = std::sqrt(std::max(squares[i], 0.0));
      cancelled += squares[i] < kCancelled * parts[i] ? 1 : 0;
    }
    for (size_t i = 0; i < width && cancelled > 0; ++i)
      if (squares[i] < kCancelled * parts[i])
        out[i] = change(block, first, row, columns.begin + static_cast<int64_t>(i));
    for (int a = 0; a < size_; ++a) {
      const int64_t heavy = head_row(block, first + a, row).heavy;
      if (columns.contains(heavy)) out[heavy - columns.begin] = change(block, first, row, heavy);
    }
  }

  /// Computes one entry from the difference itself; infinite when the change is undefined.
  double change(const AttentionBlock& block, int first, int64_t row, int64_t i) const {
    std::vector<float> v(work_.value_dim());
    work_.trace().v.read(kv_head_, i, i + 1, v.data());
    std::vector<std::vector<double>> differences;
    for (int a = 0; a < size_; ++a) {
      const HeadRow& own = head_row(block, first + a, row);
      if (i == own.heavy && own.alone) return INFINITY;
      const double share = static_cast<double>(block.attention_row(first + a, row)[i]);
      const double odds = i == own.heavy ? share : share / (1 - share);
      const std::span<const double> from = i == own.heavy ? std::span(own.rest) : own.output;
      std::vector<double> difference(from.begin(), from.end());
      for (size_t c = 0; c < difference.size(); ++c)
        difference[c] = odds * (difference[c] - static_cast<double>(v[c]));
      differences.push_back(std::move(difference));
    }
    double squares = 0;
    for (size_t p = 0; p < pairs_.size(); ++p)
      squares += pairs_[p].times() * inner(differences[pairs_[p].a], metrics_[at(first, p)]->gram,
                                           differences[pairs_[p].b]);
    return std::sqrt(std::max(squares, 0.0));
  }

  LayerWork& work_;
  bool look_ahead_;
  bool joint_;
  int kv_head_ = -1;
  int size_ = 1;                              // heads of a unit
  std::vector<PairOfUnit> pairs_;             // of a unit
  std::vector<const OutputMetric*> metrics_;  // [units][pairs]
  std::vector<double> outputs_;               // [heads][rows][dv] z of the block at work
  std::vector<HeadRow> rows_;                 // [heads][rows]
  Table<double> turned_;                      // [units][pairs][rows][dv]: z_a G_ab + z_b G_ba
  std::vector<double> forms_;                 // [units][pairs][rows]: z_a G_ab z_b
  Buffer<double> products_;                   // [units][pairs][rows][entries of the tile at work]
};

struct OutputChange : RowIndicator {
  OutputChange(const char* name, const char* meaning, const char* source, Axes axes)
      : RowIndicator({name, meaning, source}, {.outputs = true, .cost = 8},  // measured
                     axes) {}
  std::unique_ptr<IndicatorRows> rows(LayerWork& work, const Settings& settings,
                                      const Segment& segment) const override {
    return std::make_unique<OutputChangeRows>(
        work, segment, chosen<Queries>(settings).looks_ahead(), axes() == Axes::group_row);
  }
};

const bool registered = [] {
  const auto add = [](auto... of) { Kinds<Indicator>::add(std::make_unique<OutputChange>(of...)); };
  add("output-change", "change of the head's output when the entry alone is removed",
      "ReST-KV Eq. 7", Axes::head_row);
  add("output-change-joint", "change of the layer's output by all heads that share the entry",
      "kvsim, after ReST-KV Eq. 7", Axes::group_row);
  return true;
}();

/// visit(place among the candidates, v_i), some values at a time.
template <class Visit>
void for_each_value(const LayerWork& work, int kv_head, Range candidates, const Visit& visit) {
  constexpr int64_t kRows = 256;
  Table<float> values(std::min(kRows, candidates.size()), work.value_dim());
  for (int64_t first = candidates.begin; first < candidates.end; first += kRows) {
    const int64_t last = std::min(candidates.end, first + kRows);
    work.trace().v.read(kv_head, first, last, values.data());
    for (int64_t i = first; i < last; ++i) visit(i - candidates.begin, values.row(i - first));
  }
}

/// output += sum of share_i v_i.
void add_values(const LayerWork& work, int kv_head, Range candidates, std::span<const double> share,
                std::span<double> output) {
  for_each_value(work, kv_head, candidates, [&](size_t at, std::span<const float> v) {
    for (size_t c = 0; c < v.size(); ++c) output[c] += share[at] * static_cast<double>(v[c]);
  });
}

/// (output - v) G (output - v)^T.
double square_of_gap(std::span<const double> output, std::span<const float> v,
                     const Table<double>& gram) {
  double squares = 0;
  for (int64_t r = 0; r < std::ssize(v); ++r) {
    double sum = 0;
    for (size_t c = 0; c < v.size(); ++c)
      sum += gram.row(r)[c] * (output[c] - static_cast<double>(v[c]));
    squares += (output[r] - static_cast<double>(v[r])) * sum;
  }
  return squares;
}

/// Attention is aggregated first; the change of the output follows from the aggregate.
struct MeanRows : AggregatedRows {
  explicit MeanRows(LayerWork& work) : work_(work) {}

  void start(const AttentionBlock& block) override {
    metrics_.clear();
    for (int head = block.kv_head * block.heads; head < (block.kv_head + 1) * block.heads; ++head)
      metrics_.push_back(&work_.output_metric(head, head));
  }

  /// a/(1-a) * ||(mean output - v_i) W^h||; the mean output is not renormalised (as coded).
  void finish(int first_head, Range candidates,
              std::span<std::vector<double>> rows) const override {
    const int kv_head = first_head / work_.group_size();
    const int64_t dv = work_.value_dim();
    Table<double> outputs(std::ssize(rows), dv), turned(std::ssize(rows), dv);
    std::vector<double> own(rows.size());
    parallel_for(std::ssize(rows), [&](int64_t head) {
      const auto output = outputs.row(head), turn = turned.row(head);
      add_values(work_, kv_head, candidates, rows[head], output);
      for (int64_t r = 0; r < dv; ++r)
        for (int64_t c = 0; c < dv; ++c)
          turned(head, c) += outputs(head, r) * metrics_[head]->gram(r, c);
      own[head] = std::inner_product(output.begin(), output.end(), turn.begin(), 0.0);
    });
    Table<double> products(std::ssize(rows), candidates.size());
    work_.backend().value_products(work_.trace(), kv_head, turned.data(), turned.rows(), candidates,
                                   products.data());
    parallel_for(std::ssize(rows), [&](int64_t head) {
      score(kv_head, *metrics_[head], outputs.row(head), own[head], candidates, products.row(head),
            rows[head]);
    });
  }

 private:
  /// row: from attention to scores. `own`: output G output^T; `products`: output G v_i^T.
  void score(int kv_head, const OutputMetric& metric, std::span<const double> output, double own,
             Range candidates, std::span<const double> products, std::span<double> row) const {
    std::vector<float> v(output.size());
    for (int64_t at = 0; at < std::ssize(row); ++at) {
      const int64_t i = candidates.begin + at;
      const double form = metric.forms[i];
      double squares = own - 2 * products[at] + form;
      if (squares < kCancelled * (own + form)) {
        work_.trace().v.read(kv_head, i, i + 1, v.data());
        squares = square_of_gap(output, v, metric.gram);
      }
      const double share = row[at];
      row[at] = share < 1 ? share / (1 - share) * std::sqrt(std::max(squares, 0.0)) : INFINITY;
    }
  }

  LayerWork& work_;
  std::vector<const OutputMetric*> metrics_;  // of the block's heads
};

struct OutputChangeMean : RowIndicator, AggregatesFirst {
  OutputChangeMean()
      : RowIndicator({"output-change-mean",
                      "the output's change, from attention aggregated over the queries first",
                      "ReST-KV code"},
                     {.cost = 8}) {}
  std::unique_ptr<IndicatorRows> rows(LayerWork& work, const Settings&,
                                      const Segment&) const override {
    return std::make_unique<MeanRows>(work);
  }
};

/// Attention is aggregated first; the error of the head's output follows from its shares.
struct ValueChangeRows : AggregatedRows {
  explicit ValueChangeRows(LayerWork& work) : work_(work) {}

  /// a / (1 - a) |sum a v - v_i|, a brought to a sum of 1 over the candidates.
  void finish(int first_head, Range candidates,
              std::span<std::vector<double>> rows) const override {
    const int kv_head = first_head / work_.group_size();
    parallel_for(std::ssize(rows), [&](int64_t head) {
      std::vector<double>& share = rows[head];
      double sum = 0;
      for (const double a : share) sum += a;
      for (double& a : share) a = sum > 0 ? a / sum : 0;
      std::vector<double> output(work_.value_dim(), 0.0);
      add_values(work_, kv_head, candidates, share, output);
      for_each_value(work_, kv_head, candidates, [&](size_t at, std::span<const float> v) {
        double squares = 0;
        for (size_t c = 0; c < v.size(); ++c) {
          const double gap = output[c] - static_cast<double>(v[c]);
          squares += gap * gap;
        }
        double& a = share[at];
        a = a < 1 ? a / (1 - a) * std::sqrt(squares) : INFINITY;
      });
    });
  }

 private:
  LayerWork& work_;
};

struct ValueChangeMean : RowIndicator, AggregatesFirst {
  ValueChangeMean()
      : RowIndicator({"value-change-mean",
                      "the head's output error when an entry goes, from attention aggregated and "
                      "normalised first",
                      "CAOTE"}) {}
  std::unique_ptr<IndicatorRows> rows(LayerWork& work, const Settings&,
                                      const Segment&) const override {
    return std::make_unique<ValueChangeRows>(work);
  }
};
const Register<Indicator, OutputChangeMean, ValueChangeMean> means_registered;

}  // namespace kvsim::stages::indicator::output_change
