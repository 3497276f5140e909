// Declarations of the variables that are written on request only.
#include "analysis/variables.hpp"

namespace kvsim {
namespace {

constexpr const char* kLayer = "policy budget layer";
constexpr const char* kStep = "policy budget layer step";
constexpr const char* kHeadStep = "policy budget layer head step";
constexpr auto kReal = VariableType::float64;

std::vector<VariableDeclaration> on_request() {
  return {
      {"retained_importance_head", kHeadStep, kReal, "1", "retained importance of a query head",
       "the ratio of one head", kPerHead},
      {"retained_attention_head", kHeadStep, kReal, "1", "retained attention of a query head",
       "the ratio of one head", kPerHead},
      {"output_error_head", kHeadStep, kReal, "1", "relative error of a head's output",
       "‖(z^ - z) W‖ / ‖z W‖ of one head, every step", kPerHead},
      {"output_error_absolute", kStep, kReal, "model units", "error of the layer's output",
       "the numerator of output_error", kOnRequest},
      {"importance_pearson", kStep, kReal, "1", "correlation with the full cache",
       "Pearson of I and I * [kept] over all heads and entries that could be dropped", kOnRequest},
      {"importance_cosine", kStep, kReal, "1", "cosine with the full cache",
       "sqrt(sum of squares kept / sum of squares)", kOnRequest},
      {"regret_mean", kLayer, kReal, "1", "regret against the best static choice",
       "retained_importance_mean of oracle-mean minus the policy's", kOnRequest},
      {"regret_step", kStep, kReal, "1", "regret against the best choice of each step",
       "retained_importance of oracle-step minus the policy's", kOnRequest},
      {"minmax_bound", kLayer, kReal, "1", "upper bound of the worst retained importance",
       "no static choice of B entries per head is better than this at its worst step; NaN for "
       "`periodic` and `decode`, which do not choose once",
       kOnRequest},
  };
}

/// Variables that are asked for by the name of their measure.
VariableDeclaration by_measure(const char* measures, VariableDeclaration declaration) {
  declaration.occasion = kOnRequest;
  declaration.measures = measures;
  return declaration;
}

std::vector<VariableDeclaration> risk() {
  constexpr const char* kEstimator = "layer estimator";
  std::vector<VariableDeclaration> all = {
      {"estimator", "estimator", VariableType::text, "1", "estimator of the risk",
       "`single`, `mean`, `max`: importance of one query (`importance,aggregate=single`), the mean "
       "(`importance`) or the maximum over window and heads (`importance,aggregate=max,group=max`); "
       "`max_prior`: the same with `prior=head-mean`; `defensivekv`: score of that preset", 0},
      {"sample", "sample", VariableType::int64, "1", "number of a sampled entry",
       "evenly spaced over the candidates of all KV heads", 0},
      {"risk_spearman", kEstimator, kReal, "1", "rank correlation with the true risk",
       "Spearman of estimate and true risk over the candidates, mean over KV heads", 0},
      {"risk_log_ratio_median", kEstimator, kReal, "nat", "typical error of the estimate",
       "median of ln(estimate / true risk), mean over KV heads", 0},
      {"risk_underestimated", kEstimator, kReal, "1", "share of underestimated entries",
       "share of candidates with estimate < true risk, mean over KV heads", 0},
      {"risk_prior_exceeds", kEstimator, kReal, "1", "share of entries whose prior is too high",
       "share of candidates whose prior exceeds the true risk, mean over KV heads; NaN without a "
       "prior", 0},
      {"risk_true", "layer sample", kReal, "model units", "true risk of sampled entries",
       "largest importance at any later step for any query head of the group", 0},
      {"risk_estimate", "layer estimator sample", kReal, "model units",
       "estimated risk of the same entries", "the score of the estimator's record", 0},
  };
  for (VariableDeclaration& declaration : all) declaration = by_measure("risk", declaration);
  return all;
}

std::vector<VariableDeclaration> dynamics() {
  constexpr const char* kHead = "layer head";
  constexpr const char* kDrift = "indicator budget layer head";
  return {
      by_measure("attention_cdf", {"share", "share", kReal, "1", "share of the visible entries",
       "rounded up to whole entries", 0}),
      by_measure("attention_cdf", {"attention_cdf_mean", "layer share", kReal, "1",
       "attention held by the largest entries",
       "share of a query's attention on its ceil(share * visible) largest entries, mean over heads "
       "and steps", 0}),
      by_measure("attention_cdf", {"attention_cdf_p05", "layer share", kReal, "1",
       "attention held by the largest entries, percentile 5", "percentile 5 over heads and steps",
       0}),
      by_measure("late_importance", {"late_share", kLayer, kReal, "1",
       "dropped share of what later queries attend to most",
       "share of a query's max(1, floor(0.2 n)) prompt entries of largest attention that were "
       "dropped, mean over heads and steps", 0}),
      by_measure("late_importance", {"late_share_chance", kLayer, kReal, "1",
       "late_share of random eviction", "dropped entries / n, mean over heads", 0}),
      by_measure("late_importance", {"late_recall", kLayer, kReal, "1",
       "share of dropped entries that some later query attends to most",
       "dropped entries that are among those of any step / dropped entries, mean over heads", 0}),
      by_measure("locality", {"locality", kHead, kReal, "1", "locality of attention in time",
       "1 - locality_within / locality_permuted: 0 for white noise, near 1 for slow change; NaN for "
       "fewer than 32 steps", 0}),
      by_measure("locality", {"locality_within", kHead, kReal, "1",
       "variance within windows over total variance",
       "mean over windows of 16 steps, summed over prompt entries", 0}),
      by_measure("locality", {"locality_permuted", kHead, kReal, "1",
       "the same for random orders of the steps", "mean of 20 orders", 0}),
      by_measure("drift", {"indicator", "indicator", VariableType::text, "1",
       "what the rows of the window hold", "see `kvsim policies`", 0}),
      by_measure("drift", {"row", "row", VariableType::int64, "1",
       "position of an observing query", "the window of `restkv`, n-32..n-1", 0}),
      by_measure("drift key_norm", {"part", "part", kReal, "1", "middle of a part of the prompt",
       "position; at most 128 parts of nearly equal length", 0}),
      by_measure("drift", {"drift", kDrift, kReal, "tokens", "drift of the best entries",
       "mean position of the B - m best candidates, rear half of the window minus front half "
       "(ReST-KV Eq. 10)", 0}),
      by_measure("drift", {"drift_width", kDrift, kReal, "count", "width of the adaptive window",
       "what follows from the drift with beta = 2000 and a least width of 5", 0}),
      by_measure("drift", {"drift_shift", kDrift, kReal, "count", "shift of the adaptive window",
       "what follows from the drift with beta = 2000", 0}),
      by_measure("drift", {"drift_position", "indicator budget layer head row", kReal, "1",
       "mean position of the best entries", "of one observing query; NaN if B <= m", 0}),
      by_measure("drift", {"output_change_map", "layer row part", kReal, "model units",
       "output change over queries and positions",
       "indicator output-change, mean over query heads and the part's candidates", 0}),
      by_measure("key_norm", {"key_norm", "layer kv_head part", kReal, "model units",
       "norm of the keys", "L2 norm, mean over the part's entries", 0}),
      by_measure("key_norm", {"key_norm_position", "layer kv_head", kReal, "1",
       "rank correlation of key norm and position",
       "Spearman over prompt entries; positive: early keys are the short ones", 0}),
      by_measure("key_norm", {"key_norm_attention_pearson", kHead, kReal, "1",
       "correlation of key norm and later attention",
       "Pearson of the norm and the mean attention over steps, over prompt entries", 0}),
      by_measure("key_norm", {"key_norm_attention_spearman", kHead, kReal, "1",
       "rank correlation of key norm and later attention", "the same by ranks", 0}),
  };
}

/// KeepKV's claims about single slots and scores (metrics.md 3).
std::vector<VariableDeclaration> slot_changes() {
  return {
      {"value_part", kStep, kReal, "model units", "change by a merged slot's value",
       "‖a' (v^ - v_M)‖: a' attention on the slot alone in the place of its entries in the full "
       "cache, v^ its value, v_M its entries' mean by exp(logit); before W_O, mean over heads and "
       "merged slots; NaN without any",
       kOnRequest},
      {"mass_part", kStep, kReal, "model units", "change by a merged slot's mass",
       "‖(a' - a)(v_M - v_rest)‖: a attention on the slot's entries, v_rest the mean value of "
       "everything else (a sink counts as value 0); otherwise as value_part",
       kOnRequest},
  };
}

std::vector<VariableDeclaration> merge_bound() {
  constexpr const char* kBound = "policy budget layer bound delay";
  std::vector<VariableDeclaration> all = {
      {"bound", "bound", VariableType::text, "1", "bound of what a merged pair changes",
       "`paper`: KeepKV Theorem 5 as printed; `scale`: with the factor of Eq. 7; `bias`: for "
       "`keepkv-bias`",
       0},
      {"delay", "delay", VariableType::int64, "1", "steps since the merge",
       "position of the query minus that of the newest one when the pair was merged",
       0},
      {"bound_pairs", kBound, kReal, "count", "merged pairs that were looked at",
       "slots of exactly two entries whose query at that delay is stored; by KV head at the mean "
       "query of its heads. NaN where the bound is not about the policy's merge",
       0},
      {"bound_share_applicable", kBound, kReal, "1", "share of pairs that the bound applies to",
       "share with epsilon < 1", 0},
      {"bound_share_violated", kBound, kReal, "1", "share of pairs beyond the bound",
       "of the applicable ones, with Theta > bound + 1e-5 gamma", 0},
      {"bound_median_ratio", kBound, kReal, "1", "perturbation by bound",
       "median of Theta / bound over the applicable ones whose bound is above 0", 0},
      {"bound_median", kBound, kReal, "model units", "bound of the perturbation",
       "median over the applicable ones", 0},
      {"bound_perturbation", kBound, kReal, "model units", "measured perturbation",
       "median of Theta = ‖o' - o‖ over all pairs, before W_O", 0},
  };
  for (VariableDeclaration& declaration : all) declaration = by_measure("bound", declaration);
  return all;
}

std::vector<VariableDeclaration> prediction() {
  constexpr const char* kPrediction = "layer score predictor";
  std::vector<VariableDeclaration> all = {
      {"score", "score", VariableType::text, "1", "score that is predicted",
       "`exp-logit`: s = exp(logit); `attention`: s = A", 0},
      {"predictor", "predictor", VariableType::text, "1", "predictor of scores",
       "moving averages by decay (the past's weight), mean of all rows since n, of the last 32, "
       "the last row",
       0},
      {"prediction_error_median", kPrediction, kReal, "1", "error of predicted scores, median",
       "median of |s^(t) / s(t+d) - 1| over query heads, prompt entries and steps, d = --horizon; "
       "from a histogram, within 1e-3",
       0},
      {"prediction_error_trimmed_mean", kPrediction, kReal, "1",
       "error of predicted scores, trimmed mean",
       "mean without the lowest and the highest tenth; within 1e-3", 0},
      {"prediction_error_weighted_mean", kPrediction, kReal, "1",
       "error of predicted scores, weighted mean", "mean weighted by A at t+d", 0},
  };
  for (VariableDeclaration& declaration : all)
    declaration = by_measure("prediction_error", declaration);
  return all;
}

}  // namespace

std::vector<VariableDeclaration> variables_on_request() {
  std::vector<VariableDeclaration> all;
  for (auto part : {on_request, risk, dynamics, slot_changes, merge_bound, prediction}) {
    for (VariableDeclaration& declaration : part()) all.push_back(std::move(declaration));
  }
  return all;
}

}  // namespace kvsim
