#include "run/attention_study.hpp"

#include <algorithm>
#include <numeric>
#include <optional>

#include "analysis/attention_cdf.hpp"
#include "analysis/key_norm.hpp"
#include "analysis/late_importance.hpp"
#include "analysis/locality.hpp"
#include "analysis/risk.hpp"
#include "analysis/summary.hpp"
#include "sim/stages/queries/queries.hpp"

namespace kvsim {
namespace {

constexpr int64_t kSamples = 512;      // of (estimate, true risk) pairs per layer
constexpr int64_t kParts = 128;        // of the prompt
constexpr double kDriftBeta = 2000;    // tokens, the paper's

int64_t sample_count(const TraceInfo& info) {
  const auto& queries = Kinds<Queries>::find("window");
  const Settings settings = Record::parse(risk_estimators().front().record).settings;
  const int64_t window = queries.window(settings, 0, info.prompt_len);
  return std::clamp<int64_t>(info.num_kv_heads * (info.prompt_len - window), 1, kSamples);
}

std::vector<DroppedEntries> dropped_entries(const LayerReplay& replay, int64_t entries) {
  std::vector<DroppedEntries> outcomes;
  for (size_t o = 0; o < replay.count(); ++o) {
    const KeptSets& kept = *replay.outcome(o).kept;
    DroppedEntries& gone = outcomes.emplace_back();
    gone.per_query_head = kept.per_query_head;
    gone.owners = Table<uint8_t>(static_cast<int64_t>(kept.owners.size()), entries, 1);
    for (size_t owner = 0; owner < kept.owners.size(); ++owner) {
      const auto row = gone.owners.row(static_cast<int64_t>(owner));
      for (const uint32_t i : kept.owners[owner]) row[i] = 0;
      if (kept.merged.empty()) continue;
      for (const uint32_t i : kept.merged[owner]) row[i] = 0;
    }
  }
  return outcomes;
}

}  // namespace

std::optional<VariableValues> attention_coordinate(const std::string& name,
                                                   const TraceInfo& info) {
  if (name == "estimator") {
    std::vector<std::string> names;
    for (const Estimator& estimator : risk_estimators()) names.emplace_back(estimator.name);
    return names;
  }
  if (name == "sample") {
    std::vector<int64_t> numbers(static_cast<size_t>(sample_count(info)));
    std::iota(numbers.begin(), numbers.end(), int64_t{0});
    return numbers;
  }
  if (name == "share") {
    std::vector<double> shares;
    for (const int64_t percent : AttentionCdf::kPercents)
      shares.push_back(static_cast<double>(percent) / 100);
    return shares;
  }
  if (name == "part") {
    std::vector<double> middles;
    for (const Range part : prompt_parts(info.prompt_len, kParts))
      middles.push_back(static_cast<double>(part.begin + part.end - 1) / 2);
    return middles;
  }
  if (name == "indicator") return DriftRows::indicators();
  if (name == "row") return DriftRows(info, info.layers, {}, {}).positions();
  return std::nullopt;
}

AttentionStudy::AttentionStudy(const StudyOptions& options, const TraceInfo& info,
                               const SideFiles& files)
    : options_(options), info_(info) {
  if (asked("risk_spearman")) risk_ = std::make_unique<RiskScores>(info, options.layers, files);
  if (asked("drift"))
    drift_ = std::make_unique<DriftRows>(info, options.layers, options.budgets,
                                         prompt_parts(info.prompt_len, kParts));
}

AttentionStudy::~AttentionStudy() = default;

void AttentionStudy::check() const {
  if (risk_) risk_->check();
  if (drift_) drift_->check();
}

/// The measures that read the rows of the later steps, with one pass over them.
class AttentionStudy::LaterSteps {
 public:
  LaterSteps(const AttentionStudy& study, LayerWork& work, const LayerReplay& replay)
      : work_(work), replay_(replay) {
    const int heads = work.query_heads();
    const int64_t n = work.entries(), steps = work.info().steps();
    if (study.asked("attention_cdf_mean")) cdf_.emplace(heads, steps);
    if (study.asked("late_share")) late_.emplace(dropped_entries(replay, n), heads, n, steps);
    if (study.asked("locality")) locality_.emplace(heads, n, steps, study.options_.seed);
    if (study.asked("key_norm")) key_norm_.emplace(heads, n);
    const Table<float>& importance = replay.prefill().importance();
    if (study.risk_) risk_.emplace(work.kv_heads(), n, importance.data(), importance.columns());
  }

  void read() {
    if (!cdf_ && !late_ && !locality_ && !key_norm_ && !risk_) return;
    AttentionPass pass;
    pass.positions = std::span(work_.info().query_position)
                         .subspan(static_cast<size_t>(work_.info().first_step()));
    pass.look_ahead = true;
    pass.columns = cdf_ ? work_.info().total_len : work_.entries();
    for_each_attention_block(work_, pass, [&](const AttentionBlock& block, int64_t first_row) {
      const auto take = [&](auto& measure) {
        if (measure) measure->add(block, first_row);
      };
      take(cdf_), take(late_), take(locality_), take(key_norm_), take(risk_);
    });
  }

  const Table<double>& risk() const { return risk_->risk(); }

  void write(int64_t layer, size_t shown, Dataset& results) const {
    for (size_t s = 0; cdf_ && s < AttentionCdf::kPercents.size(); ++s) {
      const auto share = static_cast<int64_t>(s);
      results.row("attention_cdf_mean", {layer, share})[0] = cdf_->mean_of(s);
      results.row("attention_cdf_p05", {layer, share})[0] = cdf_->p05_of(s);
    }
    for (int h = 0; locality_ && h < work_.query_heads(); ++h) {
      results.row("locality", {layer, h})[0] = locality_->result(h).locality;
      results.row("locality_within", {layer, h})[0] = locality_->result(h).within;
      results.row("locality_permuted", {layer, h})[0] = locality_->result(h).permuted;
    }
    if (late_) write_late(layer, shown, results);
    if (key_norm_) write_key_norm(layer, results);
  }

 private:
  void write_late(int64_t layer, size_t shown, Dataset& results) const {
    for (size_t o = 0; o < replay_.count(); ++o) {
      const LateImportance::Result late = late_->result(o);
      for (const ReplayCell cell : replay_.outcome(o).cells) {
        if (cell.record >= static_cast<int>(shown)) continue;
        results.row("late_share", {cell.record, cell.budget, layer})[0] = late.share;
        results.row("late_share_chance", {cell.record, cell.budget, layer})[0] = late.chance;
        results.row("late_recall", {cell.record, cell.budget, layer})[0] = late.recall;
      }
    }
  }

  void write_key_norm(int64_t layer, Dataset& results) const {
    const std::vector<Range> parts = prompt_parts(work_.entries(), kParts);
    for (int kv = 0; kv < work_.kv_heads(); ++kv) {
      const std::vector<double> norms = key_norms(work_.trace(), kv);
      for (size_t p = 0; p < parts.size(); ++p)
        results.row("key_norm", {layer, kv})[p] =
            mean(std::span(norms).subspan(static_cast<size_t>(parts[p].begin),
                                          static_cast<size_t>(parts[p].size())));
      results.row("key_norm_position", {layer, kv})[0] = norm_with_position(norms);
      for (int h = kv * work_.group_size(); h < (kv + 1) * work_.group_size(); ++h) {
        const KeyNorm::WithAttention found = key_norm_->with_attention(h, norms);
        results.row("key_norm_attention_pearson", {layer, h})[0] = found.pearson;
        results.row("key_norm_attention_spearman", {layer, h})[0] = found.spearman;
      }
    }
  }

  LayerWork& work_;
  const LayerReplay& replay_;
  std::optional<AttentionCdf> cdf_;
  std::optional<LateImportance> late_;
  std::optional<Locality> locality_;
  std::optional<KeyNorm> key_norm_;
  std::optional<TrueRisk> risk_;
};

void AttentionStudy::measure(LayerWork& work, int64_t layer, const LayerReplay& replay,
                             size_t shown, Dataset& results) const {
  LaterSteps later(*this, work, replay);
  later.read();
  later.write(layer, shown, results);
  if (risk_) write_risk(work, layer, later.risk(), results);
  if (drift_) write_drift(work, layer, results);
}

void AttentionStudy::write_risk(LayerWork& work, int64_t layer, const Table<double>& risk,
                                Dataset& results) const {
  const std::vector<RiskEstimates> estimators = risk_->of_layer(work);
  const Range candidates = risk_->candidates();
  const auto begin = static_cast<size_t>(candidates.begin);
  const auto size = static_cast<size_t>(candidates.size());
  const auto cut = [&](const Table<double>& table, int64_t kv) {
    return table.empty() ? std::span<const double>() : table.row(kv).subspan(begin, size);
  };
  const int64_t samples = size == 0 ? 0 : results.size("sample");
  const auto sample = [&](const Table<double>& table, std::span<double> out) {
    for (int64_t k = 0; k < samples; ++k) {
      const int64_t at = k * risk.rows() * candidates.size() / samples;
      out[static_cast<size_t>(k)] =
          table(at / candidates.size(), candidates.begin + at % candidates.size());
    }
  };
  sample(risk, results.row("risk_true", {layer}));
  for (size_t e = 0; e < estimators.size(); ++e) {
    const auto estimator = static_cast<int64_t>(e);
    std::vector<double> spearman, ratio, under, exceeds;
    for (int64_t kv = 0; kv < risk.rows(); ++kv) {
      const RiskQuality quality = risk_quality(cut(estimators[e].estimate, kv), cut(risk, kv),
                                               cut(estimators[e].prior, kv));
      spearman.push_back(quality.spearman);
      ratio.push_back(quality.log_ratio_median);
      under.push_back(quality.underestimated);
      exceeds.push_back(quality.prior_exceeds);
    }
    results.row("risk_spearman", {layer, estimator})[0] = mean(spearman);
    results.row("risk_log_ratio_median", {layer, estimator})[0] = mean(ratio);
    results.row("risk_underestimated", {layer, estimator})[0] = mean(under);
    results.row("risk_prior_exceeds", {layer, estimator})[0] = mean(exceeds);
    sample(estimators[e].estimate, results.row("risk_estimate", {layer, estimator}));
  }
}

void AttentionStudy::write_drift(LayerWork& work, int64_t layer, Dataset& results) const {
  const WindowDynamics seen = drift_->of_layer(work);
  std::ranges::copy(seen.map.values(), results.row("output_change_map", {layer}).begin());
  for (size_t k = 0; k < seen.drift.size(); ++k)
    for (size_t b = 0; b < options_.budgets.size(); ++b)
      for (int h = 0; h < work.query_heads(); ++h) {
        const std::initializer_list<int64_t> at = {static_cast<int64_t>(k),
                                                   static_cast<int64_t>(b), layer, h};
        const double drift = seen.drift[k].drift(b, h);
        results.row("drift", at)[0] = drift;
        results.row("drift_width", at)[0] = static_cast<double>(adaptive_width(drift, kDriftBeta));
        results.row("drift_shift", at)[0] = static_cast<double>(adaptive_shift(drift, kDriftBeta));
        const auto positions = results.row("drift_position", at);
        for (size_t r = 0; r < positions.size(); ++r)
          positions[r] = seen.drift[k].mean_position(b, h, static_cast<int64_t>(r));
      }
}

}  // namespace kvsim
