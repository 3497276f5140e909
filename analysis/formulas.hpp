#pragma once
#include "sim/backend/backend.hpp"
#include "sim/core/decimal.hpp"
#include "sim/core/layer_trace.hpp"

namespace kvsim {

/// Share of a total that is retained; 1 when the total is 0, never outside [0, 1].
double retained_share(double kept, double total);

/// Retained importance (or attention, when the sums are of attention) of a block of steps, pooled
/// over query heads: out[s] = sum_h kept[h][s] / sum_h total[h][s]. metrics.md 1.
/// `kept` and `total` are [Hq][steps].
void retained_pooled(const Table<double>& kept, const Table<double>& total, std::span<double> out);

/// Ratio of one query head alone.
void retained_of_head(const Table<double>& kept, const Table<double>& total, int head,
                      std::span<double> out);

/// Number of steps whose retained importance is below the threshold (strictly; metrics.md 1), NaN
/// when no step has a value.
double outlier_count(std::span<const double> retained_importance, double threshold);

/// An error relative to what it disturbs: error / reference; 0/0 is 0, and a positive error over 0
/// is NaN, "undefined" (metrics.md 2).
double relative_error(double error, double reference);

/// Of each step; NaN where the error is NaN.
std::vector<double> relative_errors(std::span<const double> error,
                                    std::span<const double> reference);

/// Number of steps with a positive error over a reference of 0.
int64_t undefined_errors(std::span<const double> error, std::span<const double> reference);

/// Indices of the steps that `--wo-steps count` evaluates among 0..steps-1:
/// floor(k * steps / count), k = 0..min(count, steps)-1; all of them when count is 0.
std::vector<int64_t> evaluated_steps(int64_t steps, int64_t count);

/// Effect of compression on the residual stream at each step, all layers together: the root of the
/// summed squares of the layers' errors, relative to the stream that enters the last layer. The
/// predictor of studies/prediction.md.
class StreamError {
 public:
  /// Absolute errors [T] of one layer (norm of its output's change); NaN: not evaluated.
  void add_layer(std::span<const double> error);
  /// `norm` [T]: residual stream entering the last layer. 0 over 0 is 0, else NaN.
  std::vector<double> relative_to(std::span<const double> norm) const;

 private:
  std::vector<double> squares_;
};

/// First and second moments of the importance of a set of entries over all query heads.
struct Moments {
  double sum = 0;      ///< of I
  double squares = 0;  ///< of I^2
  void add(double importance) { *this += {importance, importance * importance}; }
  void operator+=(const Moments& other) {
    sum += other.sum;
    squares += other.squares;
  }
};

/// Correlation of x = I with y = I * [kept] over `count` pairs of head and entry (metrics.md 1). A
/// constant x or y gives 1 if x = y, else 0.
double importance_pearson(const Moments& all, const Moments& kept, double count);
double importance_cosine(const Moments& all, const Moments& kept);

/// Parts of nearly equal length that curves over the prompt's positions are drawn from, at most
/// 128: the dimension `part`.
std::vector<Range> measured_parts(int64_t entries);

/// How far the most important entries move while the observing queries pass (metrics.md 5.4;
/// ReST-KV Eq. 10): mean position of each row's K best candidates, one K per budget.
class BestDrift {
 public:
  /// `best`: the values of K.
  BestDrift(std::vector<int64_t> best, int query_heads, int64_t rows);
  /// Row `row` of a head: one number per candidate, larger is better, more recent first on ties.
  /// Different heads may be added side by side.
  void add(int query_head, int64_t row, std::span<const double> values);

  /// NaN if K = 0.
  double mean_position(size_t budget, int query_head, int64_t row) const;
  /// Front half minus rear half of the rows; 0 if K = 0 or there is one row.
  PositionDrift drift(size_t budget, int query_head) const;

 private:
  std::vector<int64_t> best_;
  std::vector<Table<int64_t>> count_;  ///< [budget] each [Hq][rows] entries that are followed
  std::vector<Table<int64_t>> sum_;    ///< the same, the sum of their positions
};

/// Width and shift of ReST-KV's adaptive window for a drift and beta in tokens, with the default
/// least width of 5 (policies.md 5.5).
int64_t adaptive_width(const PositionDrift& drift, const Decimal& beta);
int64_t adaptive_shift(const PositionDrift& drift, const Decimal& beta);

/// Steps after a merge at which KeepKV's bound is looked at.
const std::vector<int64_t>& bound_delays();

/// Change of one head's output at one query by one merged pair, and what Theorem 5 is made of
/// (metrics.md 3). Vectors are measured before W_O.
struct BoundSample {
  double perturbation = 0;  ///< Theta = ||o' - o||, only this pair replaced in the full cache
  double spread = 0;        ///< gamma = max over visible i and x in {e, c} of ||v_i - v_x||
  double mismatch = 0;      ///< epsilon = max over x of |1 - s^_x / s_x(t)|
  double scale = 1;         ///< f of Eq. 7
};

/// Samples of every pair at every delay whose query is stored and still meets the pair, [delay].
/// With several heads to a slot the query is their mean. Logits are linear in the key here.
std::vector<std::vector<BoundSample>> bound_samples(LayerWork& work,
                                                    std::span<const PairMerge> pairs);

/// One reading of the bound; defined for epsilon < 1.
struct MergeBound {
  std::string name;
  double (*value)(const BoundSample& sample);
};
/// `paper`: KeepKV Theorem 5 as printed; `scale`: with the factor f that multiplies the error;
/// `bias`: for merges that keep the mass by a bias.
const std::vector<MergeBound>& merge_bounds();

/// Shares and medians are NaN where there is nothing to take them of.
struct BoundSummary {
  int64_t pairs = 0;
  double applicable = kUndefined;    ///< share with epsilon < 1
  double violated = kUndefined;      ///< of those, Theta > bound
  double ratio = kUndefined;         ///< median Theta / bound of those
  double bound = kUndefined;         ///< median bound of those
  double perturbation = kUndefined;  ///< median Theta of all
};
BoundSummary summarize(const MergeBound& bound, std::span<const BoundSample> samples);

/// Order statistics of very many values >= 0 in little memory: bins are 2^-10 of their value wide,
/// from 2^-40 to 2^60, and know the sum of what they hold. What lies outside goes to the end bins.
class FineHistogram {
 public:
  FineHistogram();
  void add(double value);
  int64_t count() const { return count_; }
  /// Percentile p by linear interpolation between ranks; a bin stands for each of its values by
  /// their mean. NaN when nothing was added.
  double percentile(double p) const;
  /// Mean without the floor(count * share) lowest and highest values; NaN when nothing is left.
  double trimmed_mean(double share) const;

 private:
  double at_rank(int64_t rank) const;

  std::vector<int64_t> counts_;
  std::vector<double> sums_;
  int64_t count_ = 0;
};

/// How far a prediction of scores is from what comes (metrics.md 3): |s^_i(t) / s_i(t+d) - 1| over
/// all query heads, prompt entries and steps t with t and t+d stored.
struct PredictionError {
  double median = 0;
  double trimmed_mean = 0;   ///< without the lowest and the highest tenth
  double weighted_mean = 0;  ///< by attention at t+d
};

/// Quantity that is predicted: s = exp(logit), or s = A.
const std::vector<std::string>& predicted_scores();
/// Moving averages with five decays, the mean of all rows since n, of the last 32, and the last.
const std::vector<std::string>& score_predictors();

/// [score][predictor], flat. Predictors see the stored rows at positions >= n of the full cache.
/// Reads the attention once; medians and trimmed means come from a fine histogram, within 1e-3 of
/// their value. NaN when no two steps lie `horizon` apart.
std::vector<PredictionError> prediction_errors(LayerWork& work, int64_t horizon);

/// Contributions of entries to retained importance: gain[owner](t, i) is the importance of
/// entry i at step t, summed over the query heads that share the owner's set, divided by the
/// layer's denominator at t. Then rho_t(S) = base[t] + sum over owners and i in S of the gain.
struct ImportanceGains {
  std::vector<Table<float>> owners;  ///< each [T][n]
  std::vector<double> base;          ///< [T] share of entries that nobody may drop
};

/// Upper bound of the largest min_t rho_t over static sets of `budget` entries per owner, by 64
/// rounds of multiplicative weights over the steps (metrics.md 7).
double minmax_bound(const ImportanceGains& gains, int64_t budget);

/// How good an estimate of the risk is, over some entries of one KV head.
struct RiskQuality {
  double spearman = 0;
  double log_ratio_median = 0;  ///< median of ln(estimate / R*); 0 over 0 is left out
  double underestimated = 0;    ///< share of entries with estimate < R*
  double prior_exceeds = 0;     ///< share whose prior exceeds R*; NaN without a prior
};

/// All of equal length; `prior` empty: none. No entries: NaN.
RiskQuality risk_quality(std::span<const double> estimate, std::span<const double> risk,
                         std::span<const double> prior);

}  // namespace kvsim
