#include <Eigen/Core>

#include "sim/stages/indicator/indicator.hpp"
#include "sim/stages/stages.hpp"

namespace kvsim::stages::indicator::elimination {

using Rows = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

constexpr int64_t kShare = 16;      // of the entries that are left one in so many may go in a round
constexpr int64_t kFewest = 8;      // but no fewer
constexpr double kRise = 1 + 1e-6;  // of scores over that of the entry that went before
constexpr double kLeastMass = 1e-6;  // of a query's attention: with less the output is undefined

/// Attention of the queries, for the query heads of one KV head.
struct Seen {
  std::vector<Rows> attention;  ///< [g] of [M][C]
  std::vector<Rows> outputs;    ///< [g] of [M][dv]
};

/// Removes the entries of one KV head, those first that cost the output least.
///
/// Without the removed entries R the output of query head a moves by T_a / S_a, with T_a the sum
/// over R of A (z_a - v) and S_a the attention that is left. With G_ab = W^a (W^b)^T the square of
/// what all heads move by together, with one more entry i removed, is the sum over a and b of
///   (T_a + A_a (z_a - v_i)) G_ab (T_b + A_b (z_b - v_i)) / ((S_a - A_a) (S_b - A_b)).
class Removal {
 public:
  Removal(Seen seen, Rows values, std::vector<const OutputMetric*> metrics, Range candidates)
      : heads_(std::ssize(seen.attention)), queries_(seen.attention.front().rows()),
        attention_(std::move(seen.attention)), values_(std::move(values)),
        mass_(Rows::Ones(heads_, queries_)), column_(ascending<int64_t>(candidates.size())) {
    for (int64_t a = 0; a < heads_; ++a)
      for (int64_t b = 0; b < heads_; ++b)
        make_pair(seen.outputs[a], seen.outputs[b],
                  *metrics[std::min(a, b) * heads_ + std::max(a, b)], a <= b, candidates);
  }

  /// Score of every candidate: what its removal added to the root mean square over the queries.
  std::vector<double> scores() {
    std::vector<double> score(column_.size());
    double before = 0;
    while (!column_.empty()) {
      const auto [batch, bound] = cheapest(increases());
      Removal part = of(batch);
      std::vector<int64_t> left = ascending<int64_t>(std::ssize(batch)),
                           gone;  // columns of the part
      while (!left.empty()) {
        const std::vector<double> costs = part.increases();
        const auto next = std::ranges::min_element(left, {}, [&](int64_t at) { return costs[at]; });
        const double cost = costs[*next];
        if (!gone.empty() && cost > bound) break;
        before = std::max(std::sqrt(std::max(cost, 0.0)), before * kRise);
        score[part.column_[*next]] = before;
        part.remove({*next});
        gone.push_back(batch[*next]);
        left.erase(next);
      }
      std::ranges::sort(gone);
      remove(gone);
      forget(gone);
    }
    return score;
  }

 private:
  /// Of two heads a and b.
  struct Pair {
    Rows gram;                  // [dv][dv] G_ab
    Eigen::VectorXd own;        // [M] z_a G_ab z_b
    Rows crossed;               // [M][C] z_a G_ab v_i
    Rows moved;                 // [M][C] T_a G_ab (z_b - v_i)
    Eigen::VectorXd total;      // [M] T_a G_ab T_b
    std::vector<double> forms;  // [C] v_i G_ab v_i

    Pair of(const std::vector<int64_t>& columns) const {
      Pair some{gram, own, crossed(Eigen::all, columns), moved(Eigen::all, columns), total, {}};
      for (const int64_t at : columns) some.forms.push_back(forms[at]);
      return some;
    }
  };
  Removal() = default;

  /// Takes some of the candidates that are left; columns in ascending order.
  Removal of(const std::vector<int64_t>& columns) const {
    Removal some;
    some.heads_ = heads_;
    some.queries_ = queries_;
    for (const Rows& one : attention_) some.attention_.emplace_back(one(Eigen::all, columns));
    some.values_ = values_(columns, Eigen::all);
    some.mass_ = mass_;
    for (const int64_t at : columns) some.column_.push_back(column_[at]);
    for (const Pair& one : pairs_) some.pairs_.push_back(one.of(columns));
    return some;
  }

  /// The columns that cost least, ascending, and what the cheapest of the others costs.
  static std::pair<std::vector<int64_t>, double> cheapest(const std::vector<double>& costs) {
    auto order = ascending<int64_t>(std::ssize(costs));
    const auto count = std::min(std::ssize(order), std::max(kFewest, std::ssize(order) / kShare));
    std::ranges::stable_sort(order, {}, [&](int64_t at) { return costs[at]; });
    const double bound = count < std::ssize(order) ? costs[order[count]]
                                                   : std::numeric_limits<double>::infinity();
    order.resize(count);
    std::ranges::sort(order);
    return {std::move(order), bound};
  }

  Pair& pair(int64_t a, int64_t b) { return pairs_[a * heads_ + b]; }

  void make_pair(const Rows& z_a, const Rows& z_b, const OutputMetric& metric, bool in_order,
                 Range candidates) {
    Pair made;
    const Eigen::Map<const Rows> gram(metric.gram.data(), metric.gram.rows(),
                                      metric.gram.columns());
    made.gram = in_order ? Rows(gram) : Rows(gram.transpose());
    const Rows turned = z_a * made.gram;
    made.own = turned.cwiseProduct(z_b).rowwise().sum();
    made.crossed = turned * values_.transpose();
    made.moved = Rows::Zero(queries_, values_.rows());
    made.total = Eigen::VectorXd::Zero(queries_);
    made.forms.assign(metric.forms.begin() + candidates.begin,
                      metric.forms.begin() + candidates.end);
    pairs_.push_back(std::move(made));
  }

  /// By how much the mean square of what the output moves by grows without each entry; infinite
  /// where a query would be left with nothing.
  std::vector<double> increases() {
    using Line = Eigen::Array<double, 1, Eigen::Dynamic>;
    const auto count = std::ssize(column_);
    std::vector<Line> inverse(heads_);
    Line sum = Line::Zero(count), least = Line::Ones(count);
    for (int64_t j = 0; j < queries_; ++j) {
      for (int64_t a = 0; a < heads_; ++a) {
        const Line left = mass_(a, j) - attention_[a].row(j).array();
        least = least.min(left);
        inverse[a] = left.max(kLeastMass).inverse();
      }
      for (int64_t a = 0; a < heads_; ++a)
        for (int64_t b = a; b < heads_; ++b) {
          const double times = a == b ? 1 : 2;
          const Pair &own = pair(a, b), &other = pair(b, a);
          const auto of_a = attention_[a].row(j).array();
          const auto of_b = attention_[b].row(j).array();
          const Eigen::Map<const Line> form(own.forms.data(), count);
          const double now = 1 / std::max(mass_(a, j), kLeastMass) *
                             (1 / std::max(mass_(b, j), kLeastMass)) * own.total[j];
          // Exactly 0 of an entry that the query does not see.
          sum += times * (inverse[a] * inverse[b] *
                              (own.total[j] + of_b * own.moved.row(j).array() +
                               of_a * other.moved.row(j).array() +
                               of_a * of_b *
                                   (own.own[j] - own.crossed.row(j).array() -
                                    other.crossed.row(j).array() + form)) -
                          now);
        }
    }
    std::vector<double> added(count);
    for (int64_t i = 0; i < count; ++i)
      added[i] = least[i] > kLeastMass ? sum[i] / static_cast<double>(queries_)
                                       : std::numeric_limits<double>::infinity();
    return added;
  }

  /// Adds columns to what is removed; they stay as columns.
  void remove(const std::vector<int64_t>& gone) {
    std::vector<Rows> shares, before;  // [g] of [M][K]; [g][g] of [M][K]
    for (const Rows& one : attention_) shares.emplace_back(one(Eigen::all, gone));
    for (const Pair& one : pairs_) before.emplace_back(one.moved(Eigen::all, gone));
    const Rows values = values_(gone, Eigen::all);  // [K][dv]
    for (int64_t a = 0; a < heads_; ++a) {
      const Rows& share = shares[a];
      const Eigen::VectorXd all = share.rowwise().sum();
      for (int64_t b = 0; b < heads_; ++b) {
        Pair& own = pair(a, b);
        // The sum over the removed k of A_a (z_a - v_k) G_ab (z_b - v_i).
        const Rows back = pair(b, a).crossed(Eigen::all, gone);  // z_b G_ba v_k
        const Rows between = (values * own.gram) * values_.transpose();
        own.moved.noalias() += share * between;
        own.moved.noalias() -= all.asDiagonal() * own.crossed;
        own.moved.colwise() += all.cwiseProduct(own.own) - share.cwiseProduct(back).rowwise().sum();
        // T_a grew first, then T_b.
        const Rows now = own.moved(Eigen::all, gone);
        own.total += share.cwiseProduct(before[b * heads_ + a]).rowwise().sum() +
                     shares[b].cwiseProduct(now).rowwise().sum();
      }
      mass_.row(a) -= all.transpose();
    }
  }

  /// Forgets columns; in ascending order.
  void forget(const std::vector<int64_t>& gone) {
    std::vector<int64_t> stay;
    std::ranges::set_difference(ascending<int64_t>(std::ssize(column_)), gone,
                                std::back_inserter(stay));
    *this = of(stay);
  }

  int64_t heads_ = 0, queries_ = 0;
  std::vector<Rows> attention_;  // [g] of [M][C], C what is left
  Rows values_;                  // [C][dv]
  Rows mass_;                    // [g][M] S
  std::vector<int64_t> column_;  // [C] which candidate
  std::vector<Pair> pairs_;      // [g][g]
};

struct Elimination : ObservedIndicator {
  Elimination()
      : ObservedIndicator(
            {"elimination",
             "what the output loses when entries go one after the other, the least first",
             "kvsim, after ReST-KV Eq. 7"},
            Axes::group, {.outputs = true, .takes_future = true, .cost = 60}) {}

  Table<double> observed(const EntryRequest& request, const Segment& segment) const override {
    LayerWork& work = request.work;
    Table<double> scores(work.kv_heads(), segment.candidates.size());
    if (scores.columns() == 0 || segment.positions.empty()) return scores;
    std::vector<Seen> seen = see(work, segment, chosen<Queries>(request.settings).looks_ahead());
    std::vector<std::vector<const OutputMetric*>> metrics;
    metrics.reserve(work.kv_heads());
    for (int head = 0; head < work.kv_heads(); ++head) metrics.push_back(metrics_of(work, head));
    parallel_for(work.kv_heads(), [&](int64_t head) {
      const Table<float> all = work.values(static_cast<int>(head));
      const Eigen::Map<const Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>>
          values(all.data(), all.rows(), all.columns());
      Removal removal(
          std::move(seen[head]),
          values.middleRows(segment.candidates.begin, segment.candidates.size()).cast<double>(),
          metrics[head], segment.candidates);
      std::ranges::copy(removal.scores(), scores.row(head).begin());
    });
    return scores;
  }

 private:
  /// [g][g], of the pairs a <= b.
  static std::vector<const OutputMetric*> metrics_of(LayerWork& work, int kv_head) {
    const int g = work.group_size();
    const auto heads = static_cast<size_t>(g);
    std::vector<const OutputMetric*> found(heads * heads, nullptr);
    auto next = found.begin();
    for (int a = 0; a < g; ++a)
      for (int b = 0; b < g; ++b, ++next)
        if (a <= b) *next = &work.output_metric(kv_head * g + a, kv_head * g + b);
    return found;
  }

  static std::vector<Seen> see(LayerWork& work, const Segment& segment, bool look_ahead) {
    const auto queries = std::ssize(segment.positions);
    const Range candidates = segment.candidates;
    const auto g = static_cast<size_t>(work.group_size());
    std::vector<Seen> seen(work.kv_heads(),
                           {std::vector<Rows>(g, Rows(queries, candidates.size())),
                            std::vector<Rows>(g, Rows(queries, work.value_dim()))});
    const AttentionPass pass{
        .positions = segment.positions, .look_ahead = look_ahead, .outputs = true};
    for_each_attention_block(work, pass, [&](const AttentionBlock& block, int64_t first) {
      Seen& own = seen[block.kv_head];
      for (int head = 0; head < block.heads; ++head)
        for (int64_t row = 0; row < block.rows; ++row) {
          const float* attention = block.attention_row(head, row);
          auto to = own.attention[head].row(first + row);
          for (int64_t i = 0; i < candidates.size(); ++i)
            to[i] = candidates.begin + i < block.columns
                        ? static_cast<double>(attention[candidates.begin + i])
                        : 0;
          const float* z = block.outputs.data() + (head * block.rows + row) * work.value_dim();
          auto output = own.outputs[head].row(first + row);
          for (int64_t c = 0; c < work.value_dim(); ++c) output[c] = static_cast<double>(z[c]);
        }
    });
    return seen;
  }
};
const Register<Indicator, Elimination> registered;

}  // namespace kvsim::stages::indicator::elimination
