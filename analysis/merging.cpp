// Effect of merging and rounding on attention and outputs (metrics.md 3).
#include <Eigen/Core>

#include "analysis/formulas.hpp"
#include "analysis/measure.hpp"
#include "analysis/statistics.hpp"
#include "sim/core/numbers.hpp"
#include "sim/stages/merge/merge.hpp"

namespace kvsim {
namespace {

constexpr double kSlack = 1e-5;  // of gamma: rounding of float32 keys and values

/// (1 - sqrt(1 - e^2)) / e without its difference of near numbers; 0 at 0.
double circle_term(double e) { return e / (1 + std::sqrt(1 - e * e)); }

double paper_bound(const BoundSample& sample) {
  const double e = sample.mismatch;
  return 2 * e * (1 + e) * sample.spread / ((1 - e) * (1 - e));
}

double scale_bound(const BoundSample& sample) {
  const double root_q = std::pow(1 - sample.mismatch, -(1 + std::fabs(sample.scale)) / 2);
  const double mass = std::isinf(root_q) ? 1 : (root_q - 1) / (root_q + 1);
  return sample.spread * (circle_term(sample.mismatch) + mass);
}

double bias_bound(const BoundSample& sample) {
  return 2 * sample.spread * circle_term(sample.mismatch);
}

/// Of the sinks of some heads; no sinks give none.
std::vector<float> mean_sink(const LayerTrace& layer, int first, int heads) {
  if (layer.attention_sink.empty()) return {};
  double sum = 0;
  for (int h = first; h < first + heads; ++h) sum += static_cast<double>(layer.attention_sink[h]);
  return {static_cast<float>(sum / heads)};
}

/// Full-cache attention of the mean query of some heads, with which pairs are compared.
class AtQuery {
 public:
  AtQuery(LayerWork& work, int first_head, int heads, int64_t row, int64_t visible)
      : layer_(work.trace()), query_(mean_queries(layer_, first_head, heads, row, row + 1)),
        values_(work.values_ahead(first_head / work.group_size(), visible)), logits_(visible),
        output_(values_.columns()) {
    Table<float> keys(visible, layer_.k.dim(2));
    layer_.k.read(first_head / work.group_size(), 0, visible, keys.data());
    const std::vector<float> sink = mean_sink(layer_, first_head, heads);
    SlotRows rows;
    rows.heads = rows.rows = 1;
    rows.queries = query_.data();
    rows.segments = {{keys.data(), values_.data(), visible}};
    rows.sinks = sink.empty() ? nullptr : sink.data();
    rows.logits = logits_.data();
    rows.log_sum_exp = &log_sum_;
    rows.outputs = output_.data();
    work.backend().attend(layer_, {&rows, 1});
  }

  BoundSample sample(const PairMerge& pair) const {
    const double e = logits_[pair.from], c = logits_[pair.into];
    const double together = log_add(e, c);
    const double share_e = std::exp(e - together), share_c = std::exp(c - together);
    std::vector<double> mean(output_.size());
    for (size_t x = 0; x < mean.size(); ++x)
      mean[x] = share_e * value(pair.from, x) + share_c * value(pair.into, x);
    double slot = 0;
    for (int64_t x = 0; x < std::ssize(pair.key); ++x)
      slot += static_cast<double>(pair.key[x]) * static_cast<double>(query_(0, x));
    slot = layer_.scale * slot + pair.log_weight;
    BoundSample result;
    result.perturbation = slot_change<float, float>(std::min(1.0, std::exp(together - log_sum_)),
                                                    slot - together, mean, pair.value, output_)
                              .whole;
    for (const uint32_t x : {pair.from, pair.into})
      result.spread = std::max(result.spread, farthest(x));
    result.mismatch = std::max(std::fabs(std::expm1(pair.log_score_from - e)),
                               std::fabs(std::expm1(pair.log_score_into - c)));
    result.scale = pair.scale;
    return result;
  }

 private:
  double value(int64_t entry, size_t x) const {
    return static_cast<double>(values_(entry, static_cast<int64_t>(x)));
  }
  /// Largest distance of a visible value from that of an entry.
  double farthest(int64_t entry) const {
    using Rows = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
    const Eigen::Map<const Rows> values(values_.data(), values_.rows(), values_.columns());
    const Eigen::RowVectorXd own = values.row(entry).cast<double>();
    return std::sqrt((values.cast<double>().rowwise() - own).rowwise().squaredNorm().maxCoeff());
  }

  const LayerTrace& layer_;
  Table<float> query_;         ///< [1][d]
  Table<float> values_;        ///< [visible][dv]
  std::vector<float> logits_;  ///< [visible]
  std::vector<float> output_;  ///< [dv]
  double log_sum_ = 0;
};

/// Pairs that are looked at with the same query.
struct Look {
  int first_head = 0;
  int heads = 1;
  int64_t position = 0;
  std::vector<std::pair<size_t, size_t>> wanted;  ///< pair, delay
  std::vector<BoundSample> found;
};

std::vector<Look> looks_of(const TraceInfo& info, std::span<const PairMerge> pairs) {
  std::map<std::tuple<int, int, int64_t>, Look> looks;
  for (size_t p = 0; p < pairs.size(); ++p) {
    const PairMerge& pair = pairs[p];
    for (size_t d = 0; d < bound_delays().size(); ++d) {
      const int64_t position = pair.merged_at + bound_delays()[d];
      if (position > pair.last) continue;
      if (!std::ranges::binary_search(info.query_position, position)) continue;
      Look& look = looks[{pair.first_head, pair.heads, position}];
      look.first_head = pair.first_head;
      look.heads = pair.heads;
      look.position = position;
      look.wanted.emplace_back(p, d);
    }
  }
  std::vector<Look> all;
  for (auto& [key, look] : looks) all.push_back(std::move(look));
  return all;
}

}  // namespace

const std::vector<int64_t>& bound_delays() {
  static const std::vector<int64_t> delays = {0, 1, 8, 64, 512};
  return delays;
}

std::vector<std::vector<BoundSample>> bound_samples(LayerWork& work,
                                                    std::span<const PairMerge> pairs) {
  const TraceInfo& info = work.info();
  std::vector<Look> looks = looks_of(info, pairs);
  parallel_for(std::ssize(looks), [&](int64_t x) {
    Look& look = looks[x];
    const int64_t row = std::ranges::lower_bound(info.query_position, look.position) -
                        info.query_position.begin();
    const AtQuery at(work, look.first_head, look.heads, row, look.position + 1);
    for (const auto& [pair, delay] : look.wanted) look.found.push_back(at.sample(pairs[pair]));
  });
  std::vector<std::vector<BoundSample>> samples(bound_delays().size());
  for (const Look& look : looks)
    for (size_t k = 0; k < look.wanted.size(); ++k)
      samples[look.wanted[k].second].push_back(look.found[k]);
  return samples;
}

const std::vector<MergeBound>& merge_bounds() {
  static const std::vector<MergeBound> bounds = {
      {"paper", paper_bound}, {"scale", scale_bound}, {"bias", bias_bound}};
  return bounds;
}

BoundSummary summarize(const MergeBound& bound, std::span<const BoundSample> samples) {
  BoundSummary summary;
  summary.pairs = std::ssize(samples);
  if (samples.empty()) return summary;
  std::vector<double> values, ratios, perturbations;
  double violated = 0;
  for (const BoundSample& sample : samples) {
    perturbations.push_back(sample.perturbation);
    if (!(sample.mismatch < 1)) continue;
    values.push_back(bound.value(sample));
    violated += sample.perturbation > values.back() + kSlack * sample.spread;
    if (values.back() > 0) ratios.push_back(sample.perturbation / values.back());
  }
  const auto applicable = static_cast<double>(values.size());
  summary.applicable = applicable / static_cast<double>(samples.size());
  summary.perturbation = percentile(perturbations, 50);
  if (values.empty()) return summary;
  summary.violated = violated / applicable;
  summary.ratio = percentile(ratios, 50);
  summary.bound = percentile(values, 50);
  return summary;
}

}  // namespace kvsim

namespace kvsim::measures::merging {
namespace {

struct Merging : Measure {
  using Measure::Measure;

  void start(const MeasuredLayer& layer) override {
    represented_ = dropped_ = sag_ = shift_ = defect_ = series(
        static_cast<int64_t>(layer.replay.count()));
    defects_.assign(layer.replay.count(), {});
  }
  void see(const StepBlock& block, const OutcomeBlock& view) override {
    if (view.sums != nullptr) see_shares(block, view);  // undefined: positions=cache
    const int o = view.outcome;
    for (int64_t s = 0; s < block.steps; ++s) {
      const int64_t t = block.first_step + s;
      sag_(o, t) = view.merges != nullptr ? view.merges->mean(&MergeSums::sag, s) : 0;
      shift_(o, t) = view.merges != nullptr ? view.merges->mean(&MergeSums::shift, s) : 0;
      if (view.merges != nullptr) defect_(o, t) = view.merges->slot_mean(&MergeSums::defect, s);
    }
    if (view.merges == nullptr) return;
    const std::vector<double> all = view.merges->defects();
    defects_[o].insert(defects_[o].end(), all.begin(), all.end());
  }
  void finish(const MeasuredLayer& layer, MeasureResults& results) override {
    layer.for_each_cell([&](ReplayCell cell, size_t o) {
      const std::initializer_list<int64_t> at = {cell.record, cell.budget, layer.index};
      const ReplayOutcome& outcome = layer.replay.outcome(o);
      results.copy("represented_importance", at, represented_.row(o));
      results.copy("dropped_attention", at, dropped_.row(o));
      results.copy("attention_sag", at, sag_.row(o));
      results.copy("attention_shift", at, shift_.row(o));
      results.copy("log_mass_defect", at, defect_.row(o));
      results.set("log_mass_defect_p01", at, percentile(defects_[o], 1));
      results.set("log_mass_defect_p99", at, percentile(defects_[o], 99));
      results.set("merge_count", at, static_cast<double>(outcome.merge_count));
      results.set("zip_undefined", at, static_cast<double>(outcome.undefined_scales));
      results.set("zip_scale_p01", at, percentile(outcome.scales, 1));
      results.set("zip_scale_p99", at, percentile(outcome.scales, 99));
    });
  }

 private:
  void see_shares(const StepBlock& block, const OutcomeBlock& view) {
    const std::vector<double> kept = over_heads(view.sums->kept.importance);
    const std::vector<double> importance = over_heads(view.sums->total.importance);
    const std::vector<double> present = over_heads(view.sums->kept.attention);
    const std::vector<double> attention = over_heads(view.sums->total.attention);
    const auto of_members = [&](double MergeSums::*part, int64_t s) {
      return view.merges != nullptr ? view.merges->sum(part, s) : 0;
    };
    for (int64_t s = 0; s < block.steps; ++s) {
      const int64_t t = block.first_step + s;
      const double held = kept[s] + of_members(&MergeSums::importance, s);
      const double lost = attention[s] - present[s] - of_members(&MergeSums::attention, s);
      represented_(view.outcome, t) = retained_share(held, importance[s]);
      dropped_(view.outcome, t) = std::max(0.0, lost) / run().info.num_query_heads;
    }
  }

  Table<double> represented_, dropped_, sag_, shift_, defect_;
  std::vector<std::vector<double>> defects_;  ///< [outcome] of every head, merged slot and step
};
const RegisterMeasure<Merging> register_merging(
    {.name = "merging", .place = 420, .when = &kMerges},
    {{"represented_importance", kOverSteps, "1", "importance of kept and merged entries",
      "retained_importance with the entries counted in that are part of another's slot"},
     {"attention_sag", kOverSteps, "1", "attention sag",
      "sum over merged slots of (attention of their entries in the full cache - attention of the "
      "slot), mean over query heads; positive: the slots lost attention; 0 without merged slots"},
     {"attention_shift", kOverSteps, "1", "attention shift",
      "the same with absolute values of the brackets"},
     {"dropped_attention", kOverSteps, "1", "attention on dropped entries",
      "attention of the full cache on entries that no slot holds, mean over query heads"},
     {"log_mass_defect", kOverSteps, "nat", "log-mass defect",
      "log-weight + logit of a merged slot - log-sum-exp of its entries' logits, mean over heads "
      "and merged slots; NaN without any"},
     {"log_mass_defect_p01", kOverLayers, "nat", "log-mass defect, percentile 1",
      "percentile 1 over heads, merged slots and steps"},
     {"log_mass_defect_p99", kOverLayers, "nat", "log-mass defect, percentile 99",
      "percentile 99 over heads, merged slots and steps"},
     {"merge_count", kOverLayers, "count", "merged slots",
      "slots that hold two or more entries, after the last compression"},
     {"zip_undefined", kOverLayers, "count", "merges with an undefined scale",
      "merges at which KeepKV Eq. 7 divides by nothing; its scale is 1 there"},
     {"zip_scale_p01", kOverLayers, "1", "scale of a merged key, percentile 1",
      "percentile 1 of f in KeepKV Eq. 7; NaN for other merges"},
     {"zip_scale_p99", kOverLayers, "1", "scale of a merged key, percentile 99",
      "percentile 99 of f in KeepKV Eq. 7; NaN for other merges"}});

struct SlotChanges : Measure {
  using Measure::Measure;

  MeasureNeeds needs() const override { return {.slot_changes = true}; }
  void start(const MeasuredLayer& layer) override {
    value_ = mass_ = series(static_cast<int64_t>(layer.replay.count()));
  }
  void see(const StepBlock& block, const OutcomeBlock& view) override {
    if (view.merges == nullptr) return;
    const auto values = value_.row(view.outcome).subspan(block.first_step, block.steps);
    const auto masses = mass_.row(view.outcome).subspan(block.first_step, block.steps);
    for (int64_t s = 0; s < block.steps; ++s) {
      values[s] = view.merges->slot_mean(&MergeSums::value_part, s);
      masses[s] = view.merges->slot_mean(&MergeSums::mass_part, s);
    }
  }
  void finish(const MeasuredLayer& layer, MeasureResults& results) override {
    layer.for_each_cell([&](ReplayCell cell, size_t o) {
      results.copy("value_part", {cell.record, cell.budget, layer.index}, value_.row(o));
      results.copy("mass_part", {cell.record, cell.budget, layer.index}, mass_.row(o));
    });
  }

 private:
  Table<double> value_, mass_;
};
const RegisterMeasure<SlotChanges> register_slot_changes(
    {.name = "slot_changes", .place = 570},
    {{"value_part", kOverSteps, "model units", "change by a merged slot's value",
      "‖a' (v^ - v_M)‖: a' attention on the slot alone in the place of its entries in the full "
      "cache, v^ its value, v_M its entries' mean by exp(logit); before W_O, mean over heads and "
      "merged slots; NaN without any"},
     {"mass_part", kOverSteps, "model units", "change by a merged slot's mass",
      "‖(a' - a)(v_M - v_rest)‖: a attention on the slot's entries, v_rest the mean value of "
      "everything else (a sink counts as value 0); otherwise as value_part"}});

struct QuantizationError : Measure {
  using Measure::Measure;

  MeasureNeeds needs() const override { return {.rounding_norms = true}; }
  void finish(const MeasuredLayer& layer, MeasureResults& results) override {
    layer.for_each_cell([&](ReplayCell cell, size_t o) {
      const Record& record = run().options.records[cell.record];
      if (!quantizer(record.settings).changes_entries()) return;
      const auto relative = relative_errors(layer.norms.rounding(o), layer.norms.full());
      results.copy("quantization_error", {cell.record, cell.budget, layer.index}, relative);
      results.set("quantization_error_mean", {cell.record, cell.budget, layer.index},
                  mean(relative));
    });
  }
};
const RegisterMeasure<QuantizationError> register_quantization_error(
    {.name = "quantization_error", .place = 410, .when = &kAlways},
    {{"quantization_error", "policy budget layer step", "1",
      "quantisation's part of the output error",
      "‖sum over heads of (z^ - z^ without quantising) W‖ / ‖sum over heads of z W‖: what is added "
      "to the error of the same slots unrounded; NaN for policies that do not quantise",
      Needs{&kQuantizes}},
     {"quantization_error_mean", "policy budget layer", "1", "mean quantisation error",
      "mean over the evaluated steps", Needs{&kQuantizes}}});

VariableValues bounds(const RunShape& /*run*/) {
  std::vector<std::string> names;
  for (const MergeBound& bound : merge_bounds()) names.push_back(bound.name);
  return names;
}
VariableValues delays(const RunShape& /*run*/) { return bound_delays(); }

constexpr const char* kBound = "policy budget layer bound delay";
struct MergeBounds : Measure {
  using Measure::Measure;

  MeasureNeeds needs() const override { return {.pairs = true}; }
  void finish(const MeasuredLayer& layer, MeasureResults& results) override {
    for (size_t o = 0; o < layer.replay.count(); ++o) {
      const ReplayOutcome& outcome = layer.replay.outcome(o);
      if (outcome.pairs.empty()) continue;
      const int heads = outcome.pairs.front().heads;
      if (chosen<Merge>(*outcome.settings).bounds(heads).empty()) continue;
      const auto samples = bound_samples(layer.work, outcome.pairs);
      for (const ReplayCell cell : outcome.cells)
        if (cell.record < static_cast<int>(layer.shown))
          write(cell, layer.index, heads, samples, results);
    }
  }

 private:
  void write(ReplayCell cell, int64_t layer, int heads,
             const std::vector<std::vector<BoundSample>>& samples, MeasureResults& results) const {
    const auto names = chosen<Merge>(run().options.records[cell.record].settings).bounds(heads);
    for (int64_t k = 0; k < std::ssize(merge_bounds()); ++k) {
      if (!contains(names, merge_bounds()[k].name)) continue;
      for (int64_t d = 0; d < std::ssize(samples); ++d) {
        const BoundSummary summary = summarize(merge_bounds()[k], samples[d]);
        const std::initializer_list<int64_t> at = {cell.record, cell.budget, layer, k, d};
        results.set("bound_pairs", at, static_cast<double>(summary.pairs));
        results.set("bound_share_applicable", at, summary.applicable);
        results.set("bound_share_violated", at, summary.violated);
        results.set("bound_median_ratio", at, summary.ratio);
        results.set("bound_median", at, summary.bound);
        results.set("bound_perturbation", at, summary.perturbation);
      }
    }
  }
};
const RegisterMeasure<MergeBounds> register_merge_bounds(
    {.name = "bound", .place = 580, .whole = true},
    {{"bound", "bound", "1", "bound of what a merged pair changes",
      "`paper`: KeepKV Theorem 5 as printed; `scale`: with the factor of Eq. 7; `bias`: for "
      "`keepkv-bias`",
      VariableType::text, Known{bounds}},
     {"delay", "delay", "1", "steps since the merge",
      "position of the query minus that of the newest one when the pair was merged",
      VariableType::int64, Known{delays}},
     {"bound_pairs", kBound, "count", "merged pairs that were looked at",
      "slots of exactly two entries whose query at that delay is stored; by KV head at the mean "
      "query of its heads. NaN where the bound is not about the policy's merge"},
     {"bound_share_applicable", kBound, "1", "share of pairs that the bound applies to",
      "share with epsilon < 1"},
     {"bound_share_violated", kBound, "1", "share of pairs beyond the bound",
      "of the applicable ones, with Theta > bound + 1e-5 gamma"},
     {"bound_median_ratio", kBound, "1", "perturbation by bound",
      "median of Theta / bound over the applicable ones whose bound is above 0"},
     {"bound_median", kBound, "model units", "bound of the perturbation",
      "median over the applicable ones"},
     {"bound_perturbation", kBound, "model units", "measured perturbation",
      "median of Theta = ‖o' - o‖ over all pairs, before W_O"}});

}  // namespace
}  // namespace kvsim::measures::merging
