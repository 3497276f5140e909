#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "sim/core/parallel.hpp"
#include "sim/stages/indicator/indicator.hpp"

namespace kvsim {
namespace {

/// Products of outputs with values held at a time, per block of rows.
constexpr int64_t kProducts = int64_t{1} << 20;
/// Columns of a row that are worked on together, while they are in the first-level cache.
constexpr int64_t kColumns = 512;
/// A squared distance below this share of its parts is taken from the difference itself.
constexpr double kCancelled = 1e-8;
/// exp of less than this share of the largest does not show in a float64 sum of any length.
constexpr double kNegligible = -60;

/// x G y^T.
double inner(std::span<const double> x, const Table<double>& gram, std::span<const double> y) {
  double sum = 0;
  for (size_t r = 0; r < x.size(); ++r) {
    const auto row = gram.row(static_cast<int64_t>(r));
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
  std::vector<double> output;     // z
  int64_t heavy = -1;             // the entry with A >= 1/2, if any
  std::vector<double> rest;       // mean of everything else, for the heavy entry
  bool alone = false;             // nothing but the heavy entry is visible
};

/// Rows of ReST-KV Eq. 7, ||odds * (z - v_i) W^h||, for a head or summed inside the norm over the
/// heads that share the entry (joint). A *unit* is what is summed: one head, or all of the group.
///
/// With G_ab = W^a (W^b)^T the square is the sum over heads a, b of the unit of
///   odds_a odds_b (z_a G_ab z_b - z_a G_ab v_i - z_b G_ba v_i + v_i G_ab v_i),
/// where the second and third terms are one matrix product for all rows and entries, and the last
/// one is known for all rows.
class OutputChangeRows : public RowIndicator {
 public:
  OutputChangeRows(LayerWork& work, const Segment& segment, bool look_ahead, bool joint)
      : work_(work), candidates_(segment.candidates), look_ahead_(look_ahead), joint_(joint) {}

  void start(const AttentionBlock& block) override {
    kv_head_ = block.kv_head;
    size_ = joint_ ? block.heads : 1;
    find_metrics(block);
    prepare(block);
    find_rests(block);
    const int64_t rows = block.heads * block.rows;
    change_.resize(static_cast<size_t>(rows / size_ * candidates_.size()));
    const int64_t step = std::max<int64_t>(128, kProducts / std::max<int64_t>(rows * size_, 1));
    for (int64_t begin = candidates_.begin; begin < candidates_.end; begin += step)
      score_tile(block, {begin, std::min(candidates_.end, begin + step)});
  }

  void row(const AttentionBlock& block, int head, int64_t row, Range candidates,
           std::span<double> out) const override {
    const auto stored = stored_row(block, head, row);
    const auto first = static_cast<size_t>(candidates.begin - candidates_.begin);
    std::ranges::copy(stored.subspan(first, out.size()), out.begin());
  }
  std::span<const double> stored_row(const AttentionBlock& block, int head,
                                     int64_t row) const override {
    const int64_t columns = candidates_.size();
    return std::span(change_).subspan(static_cast<size_t>((head * block.rows + row) * columns),
                                      static_cast<size_t>(columns));
  }

 private:
  /// Of head `a` of the block and head number b of its unit.
  const OutputMetric& metric(int a, int b) const {
    return *metrics_[static_cast<size_t>(a * size_ + b)];
  }
  void find_metrics(const AttentionBlock& block) {
    const int first = block.kv_head * block.heads;
    metrics_.clear();
    for (int a = 0; a < block.heads; ++a)
      for (int b = 0; b < size_; ++b)
        metrics_.push_back(&work_.output_metric(first + a, first + a / size_ * size_ + b));
  }
  const HeadRow& head_row(const AttentionBlock& block, int head, int64_t row) const {
    return rows_[static_cast<size_t>(head * block.rows + row)];
  }
  /// Where z_a G_ab of one row, or its products with the values, is found.
  int64_t at(const AttentionBlock& block, int a, int b, int64_t row) const {
    return (a * size_ + b) * block.rows + row;
  }

  void prepare(const AttentionBlock& block) {
    const int64_t dv = work_.value_dim();
    rows_.assign(static_cast<size_t>(block.heads * block.rows), {});
    turned_ = Table<double>(block.heads * size_ * block.rows, dv);
    forms_.resize(static_cast<size_t>(turned_.rows()));
    parallel_for(block.heads * block.rows, [&](int64_t index) {
      const int head = static_cast<int>(index / block.rows);
      const int64_t row = index % block.rows;
      const float* z = block.outputs.data() + index * dv;
      HeadRow& own = rows_[static_cast<size_t>(index)];
      own.output.assign(z, z + dv);
      const float* a = block.attention_row(head, row);
      const float* top = std::max_element(a, a + visible(block, row));
      if (*top >= 0.5f) own.heavy = top - a;
      for (int b = 0; b < size_; ++b) {
        const auto turned = turned_.row(at(block, head, b, row));
        for (int64_t r = 0; r < dv; ++r) {
          const auto gram = metric(head, b).gram.row(r);
          const double x = own.output[static_cast<size_t>(r)];
          for (size_t c = 0; c < gram.size(); ++c) turned[c] += x * gram[c];
        }
        const float* of_b = block.outputs.data() +
                            ((head / size_ * size_ + b) * block.rows + row) * dv;
        forms_[static_cast<size_t>(at(block, head, b, row))] =
            std::inner_product(of_b, of_b + dv, turned.begin(), 0.0);
      }
    });
  }

  static int64_t visible(const AttentionBlock& block, int64_t row) {
    return std::min(block.columns, block.positions[static_cast<size_t>(row)] + 1);
  }

  /// The mean of everything else needs logits: they are asked for where an entry is heavy.
  void find_rests(const AttentionBlock& block) {
    std::vector<int64_t> positions, numbers;   // of the rows with such entries
    for (int64_t row = 0; row < block.rows; ++row) {
      int head = 0;
      while (head < block.heads && head_row(block, head, row).heavy < 0) ++head;
      if (head == block.heads) continue;
      positions.push_back(block.positions[static_cast<size_t>(row)]);
      numbers.push_back(row);
    }
    if (numbers.empty()) return;
    AttentionRequest request{.kv_head = kv_head_,
                             .rows = stored_queries(work_, positions, look_ahead_),
                             .columns = block.columns,
                             .logits = true};
    AttentionBlock again;
    work_.backend().attention(work_.trace(), request, again);
    parallel_for(again.heads * again.rows, [&](int64_t index) {
      const int head = static_cast<int>(index / again.rows);
      const int64_t row = numbers[static_cast<size_t>(index % again.rows)];
      HeadRow& own = rows_[static_cast<size_t>(head * block.rows + row)];
      if (own.heavy >= 0)
        find_rest(again.logit_row(head, index % again.rows), visible(block, row), head, own);
    });
  }

  void find_rest(const float* logits, int64_t visible, int head, HeadRow& own) const {
    const std::vector<float>& sinks = work_.trace().attention_sink;
    const int query_head = kv_head_ * work_.group_size() + head;
    const double sink =
        sinks.empty() ? -INFINITY : static_cast<double>(sinks[static_cast<size_t>(query_head)]);
    double shift = sink;
    for (int64_t i = 0; i < visible; ++i)
      if (i != own.heavy) shift = std::max(shift, static_cast<double>(logits[i]));
    own.alone = shift == -INFINITY;
    if (own.alone) return;
    double mass = std::exp(sink - shift);
    own.rest.assign(own.output.size(), 0.0);
    std::vector<float> v(own.rest.size());
    for (int64_t i = 0; i < visible; ++i) {
      const double logit = static_cast<double>(logits[i]) - shift;
      if (i == own.heavy || logit < kNegligible) continue;
      const double e = std::exp(logit);
      work_.trace().v.read(kv_head_, i, i + 1, v.data());
      mass += e;
      for (size_t c = 0; c < own.rest.size(); ++c) own.rest[c] += e * static_cast<double>(v[c]);
    }
    for (double& x : own.rest) x /= mass;
  }

  void score_tile(const AttentionBlock& block, Range tile) {
    products_.resize(static_cast<size_t>(turned_.rows() * tile.size()));
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
    for (int a = 0; a < size_; ++a)
      for (int b = 0; b < size_; ++b) {
        const auto odds_a = odds.row(a), odds_b = odds.row(b);
        const double* left = products(block, first + a, b, row, tile, columns);
        const double* right = products(block, first + b, a, row, tile, columns);
        const double* forms = metric(first + a, b).forms.data() + columns.begin;
        const double own = forms_[static_cast<size_t>(at(block, first + a, b, row))];
        for (size_t i = 0; i < width; ++i)
          squares[i] += odds_a[i] * odds_b[i] * (own - left[i] - right[i] + forms[i]);
        for (size_t i = 0; i < width && a == b; ++i)
          parts[i] += odds_a[i] * odds_a[i] * (own + forms[i]);
      }
    double* const out = change_.data() + (first / size_ * block.rows + row) * candidates_.size() +
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

  /// z_a G_ab v_i of one row for the columns i of a tile from columns.begin on.
  const double* products(const AttentionBlock& block, int a, int b, int64_t row, Range tile,
                         Range columns) const {
    return products_.data() + at(block, a, b, row) * tile.size() + columns.begin - tile.begin;
  }

  /// The same for one entry, from the difference itself; infinite when the change is undefined.
  double change(const AttentionBlock& block, int first, int64_t row, int64_t i) const {
    std::vector<float> v(static_cast<size_t>(work_.value_dim()));
    work_.trace().v.read(kv_head_, i, i + 1, v.data());
    std::vector<std::vector<double>> differences;
    for (int a = 0; a < size_; ++a) {
      const HeadRow& own = head_row(block, first + a, row);
      if (i == own.heavy && own.alone) return INFINITY;
      const double share = static_cast<double>(block.attention_row(first + a, row)[i]);
      const double odds = i == own.heavy ? share : share / (1 - share);
      std::vector<double> difference = i == own.heavy ? own.rest : own.output;
      for (size_t c = 0; c < difference.size(); ++c)
        difference[c] = odds * (difference[c] - static_cast<double>(v[c]));
      differences.push_back(std::move(difference));
    }
    double squares = 0;
    for (int a = 0; a < size_; ++a)
      for (int b = 0; b < size_; ++b)
        squares += inner(differences[static_cast<size_t>(a)], metric(first + a, b).gram,
                         differences[static_cast<size_t>(b)]);
    return std::sqrt(std::max(squares, 0.0));
  }

  LayerWork& work_;
  Range candidates_;
  bool look_ahead_;
  bool joint_;
  int kv_head_ = -1;
  int size_ = 1;                   // heads of a unit
  std::vector<const OutputMetric*> metrics_;   // [heads][unit heads b]
  std::vector<HeadRow> rows_;      // [heads][rows] of the block at work
  Table<double> turned_;           // [heads][unit heads b][rows][dv]: z_a G_ab
  std::vector<double> forms_;      // [heads][unit heads b][rows]: z_a G_ab z_b
  std::vector<double> products_;   // [heads][unit heads b][rows][entries of the tile at work]
  std::vector<double> change_;     // [units][rows][candidates]
};

class OutputChangeKind : public Indicator {
 public:
  OutputChangeKind(KindInfo info, bool joint) : Indicator(std::move(info)), joint_(joint) {}
  Axes axes() const override { return joint_ ? Axes::group_row : Axes::head_row; }
  bool needs_outputs() const override { return true; }
  std::unique_ptr<RowIndicator> rows(LayerWork& work, const Settings& settings,
                                     const Segment& segment) const override {
    return std::make_unique<OutputChangeRows>(work, segment, settings.is("queries", "future"),
                                              joint_);
  }

 private:
  bool joint_;
};

struct OutputChange : OutputChangeKind {
  OutputChange()
      : OutputChangeKind({"indicator", "output-change", "change of the head's output when the "
                          "entry alone is removed", "ReST-KV Eq. 7", {}}, false) {}
};
struct OutputChangeJoint : OutputChangeKind {
  OutputChangeJoint()
      : OutputChangeKind({"indicator", "output-change-joint", "change of the layer's output by all "
                          "heads that share the entry", "kvsim, after ReST-KV Eq. 7", {}}, true) {}
};
const Register<Indicator, OutputChange> output_change;
const Register<Indicator, OutputChangeJoint> output_change_joint;

}  // namespace
}  // namespace kvsim
