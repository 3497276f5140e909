#include "run/study_results.hpp"

#include <algorithm>
#include <cmath>

#include "analysis/outliers.hpp"
#include "analysis/output_error.hpp"
#include "analysis/statistics.hpp"
#include "analysis/summary.hpp"
#include "sim/stages/merge/merge.hpp"
#include "sim/stages/merge/votes.hpp"
#include "sim/stages/quantize/quantize.hpp"

namespace kvsim {
namespace {

/// What quantisation does to each owner's slots; empty when nothing is quantised.
std::vector<QuantizedHead> quantized_heads(const LayerWork& work, const ReplayOutcome& outcome,
                                           const Settings& settings) {
  const Quantize& rounding = quantizer(settings);
  std::vector<QuantizedHead> heads;
  if (!rounding.changes_entries()) return heads;
  const KeptSets& kept = outcome.first_kept ? *outcome.first_kept : *outcome.kept;
  for (const auto& owner : kept.owners) {
    const QuantizedCount count =
        rounding.count(settings, static_cast<int64_t>(owner.size()), work.trace().k.dim(2),
                       work.value_dim());
    heads.push_back({count.numbers, count.groups, static_cast<int>(settings.count("quant_bits"))});
  }
  return heads;
}

/// Bytes of votes, biases and estimates: four for each number that a slot carries.
double side_bytes(const LayerWork& work, const KeptSets& kept, const Settings& settings) {
  constexpr double kNumberBytes = 4;
  const int heads = kept.per_query_head ? 1 : work.group_size();
  double per_slot = votes_of(settings).side_bytes(heads);
  switch (Kinds<Merge>::find(settings.text("merge")).estimates()) {
    case EstimateLines::none: break;
    case EstimateLines::mean_query: per_slot += kNumberBytes; break;
    case EstimateLines::every_head: per_slot += kNumberBytes * heads; break;
  }
  double slots = 0;
  for (const auto& owner : kept.owners) slots += static_cast<double>(owner.size());
  return slots * per_slot;
}

std::vector<double> differences(const std::vector<double>& from, const std::vector<double>& what) {
  std::vector<double> result(from.size());
  for (size_t t = 0; t < from.size(); ++t) result[t] = from[t] - what[t];
  return result;
}

}  // namespace

StudyResults::StudyResults(const TraceReader& reader, const StudyOptions& options,
                           const std::vector<Record>& records,
                           std::vector<int64_t> projected_steps)
    : reader_(reader),
      options_(options),
      records_(records),
      projected_steps_(std::move(projected_steps)),
      spans_(span_tokens(reader.info(), options.span_complements)),
      dataset_(empty_results(reader, options, records, spans_)) {}

void StudyResults::set_value(const char* name, std::initializer_list<int64_t> index,
                             double value) {
  if (dataset_.has(name)) dataset_.row(name, index)[0] = value;
}

void StudyResults::write_series(const char* name, ReplayCell cell, int64_t layer,
                                const std::vector<double>& values, int64_t first) {
  if (dataset_.has(name)) {
    const auto row = dataset_.row(name, {cell.record, cell.budget, layer});
    std::ranges::copy(values, row.begin() + first);
  }
}

void StudyResults::write_cell(ReplayCell cell, int64_t layer, const LayerWork& work,
                              const ReplayOutcome& outcome, const StepSeries& series,
                              const FullSeries& full) {
  write_summaries(cell, layer, series);
  write_errors(cell, layer, work, series, full);
  if (!series.represented.empty()) write_merges(cell, layer, outcome, series);
  write_kept(cell, layer, *outcome.kept);
  if (!spans_.empty()) write_keep_rates(cell, layer, *outcome.kept);
  write_classes(cell, layer, series.parts);
  if (options_.per_head) write_heads(cell, layer, series, full);
  add_memory(cell, work, outcome);
}

void StudyResults::write_summaries(ReplayCell cell, int64_t layer, const StepSeries& series) {
  const auto [p, b] = cell;
  write_series("retained_importance", cell, layer, series.importance);
  write_series("retained_attention", cell, layer, series.attention);
  set_value("retained_importance_mean", {p, b, layer}, mean(series.importance));
  set_value("retained_importance_min", {p, b, layer}, minimum(series.importance));
  set_value("retained_importance_p01", {p, b, layer}, percentile(series.importance, 1));
  set_value("retained_attention_mean", {p, b, layer}, mean(series.attention));
  set_value("retained_attention_min", {p, b, layer}, minimum(series.attention));
  set_value("retained_attention_p01", {p, b, layer}, percentile(series.attention, 1));
  set_value("outlier_count", {p, b, layer}, outlier_count(series.importance, options_.outlier));
}

void StudyResults::write_errors(ReplayCell cell, int64_t layer, const LayerWork& work,
                                const StepSeries& series, const FullSeries& full) {
  const auto [p, b] = cell;
  std::vector<double> relative(series.error.size());
  relative_errors(series.error, full.output, relative);
  write_series("output_error", cell, layer, relative);
  write_series("output_error_absolute", cell, layer, series.error);
  const Settings& settings = records_[static_cast<size_t>(p)].settings;
  if (dataset_.has("quantization_error") && quantizer(settings).changes_entries()) {
    std::vector<double> rounding(series.rounding.size());
    relative_errors(series.rounding, full.output, rounding);
    write_series("quantization_error", cell, layer, rounding);
    set_value("quantization_error_mean", {p, b, layer}, mean(rounding));
  }
  set_value("output_error_mean", {p, b, layer}, mean(relative));
  set_value("output_error_max", {p, b, layer}, maximum(relative));
  set_value("output_error_p99", {p, b, layer}, percentile(relative, 99));
  set_value("output_error_undefined", {p, b, layer},
            static_cast<double>(undefined_errors(series.error, full.output)));
  if (!dataset_.has("residual_error")) return;
  const auto norms = std::span(work.trace().residual_norm)
                         .subspan(static_cast<size_t>(work.info().first_step()));
  const std::vector<double> residual(norms.begin(), norms.end());
  relative_errors(series.error, residual, relative);
  write_series("residual_error", cell, layer, relative);
  set_value("residual_error_mean", {p, b, layer}, mean(relative));
  set_value("residual_error_max", {p, b, layer}, maximum(relative));
  set_value("residual_error_p99", {p, b, layer}, percentile(relative, 99));
  stream_[{p, b}].add_layer(series.error);
  last_norm_ = residual;
}

bool StudyResults::wants_some(std::string_view beginning) const {
  return std::ranges::any_of(dataset_.variables(), [&](const Variable& variable) {
    return std::string_view(variable.name).starts_with(beginning);
  });
}

bool StudyResults::wants_merges() const {
  return std::ranges::any_of(
      std::vector<const char*>{"represented_importance", "attention_sag", "attention_shift",
                               "dropped_attention", "log_mass_defect", "log_mass_defect_p01",
                               "log_mass_defect_p99", "merge_count", "zip_undefined",
                               "zip_scale_p01", "zip_scale_p99", "value_part", "mass_part"},
      [this](const char* name) { return wants(name); });
}

void StudyResults::write_merges(ReplayCell cell, int64_t layer, const ReplayOutcome& outcome,
                                const StepSeries& series) {
  const auto [p, b] = cell;
  write_series("represented_importance", cell, layer, series.represented);
  write_series("dropped_attention", cell, layer, series.dropped);
  write_series("attention_sag", cell, layer, series.sag);
  write_series("attention_shift", cell, layer, series.shift);
  write_series("log_mass_defect", cell, layer, series.defect);
  write_series("value_part", cell, layer, series.value_part);
  write_series("mass_part", cell, layer, series.mass_part);
  set_value("log_mass_defect_p01", {p, b, layer}, percentile(series.defects, 1));
  set_value("log_mass_defect_p99", {p, b, layer}, percentile(series.defects, 99));
  set_value("merge_count", {p, b, layer}, static_cast<double>(outcome.merge_count));
  set_value("zip_undefined", {p, b, layer}, static_cast<double>(outcome.undefined_scales));
  set_value("zip_scale_p01", {p, b, layer}, percentile(outcome.scales, 1));
  set_value("zip_scale_p99", {p, b, layer}, percentile(outcome.scales, 99));
}

void StudyResults::write_kept(ReplayCell cell, int64_t layer, const KeptSets& kept) {
  const auto [p, b] = cell;
  const bool query = kept.per_query_head;
  for (size_t o = 0; o < kept.owners.size(); ++o) {
    const auto owner = static_cast<int64_t>(o);
    set_value(query ? "kept_query" : "kept", {p, b, layer, owner},
              static_cast<double>(kept.owners[o].size()));
    set_value(query ? "tied_at_threshold_query" : "tied_at_threshold", {p, b, layer, owner},
              kept.tied.empty() ? 0.0 : static_cast<double>(kept.tied[o]));
    const char* mask = query ? "kept_mask_query" : "kept_mask";
    if (!dataset_.has(mask)) continue;
    const auto row = dataset_.row<uint8_t>(mask, {p, b, layer, owner});
    std::ranges::fill(row, uint8_t{0});
    for (const uint32_t entry : kept.owners[o]) row[entry] = 1;
    for (size_t m = 0; !kept.merged.empty() && m < kept.merged[o].size(); ++m)
      row[kept.merged[o][m]] = 2;
  }
}

void StudyResults::write_keep_rates(ReplayCell cell, int64_t layer, const KeptSets& kept) {
  const auto [p, b] = cell;
  const double line = unbiased_rate(kept.owners, reader_.info().prompt_len);
  std::vector<double> rates;
  for (size_t s = 0; s < spans_.size(); ++s) {
    const auto span = static_cast<int64_t>(s);
    rates.push_back(keep_rate(kept.owners, spans_[s]));
    set_value("keep_rate", {p, b, layer, span}, rates.back());
    set_value("bias_index", {p, b, layer, span}, rates.back() - line);
    if (kept.per_query_head) continue;
    for (size_t o = 0; o < kept.owners.size(); ++o) {
      set_value("keep_rate_head", {p, b, layer, static_cast<int64_t>(o), span},
                keep_rate_of_head(kept.owners[o], spans_[s]));
    }
  }
  set_value("bias_spread", {p, b, layer}, bias_spread(rates, spans_));
}

/// Class scores (metrics.md 6): retained importance within each span, [spans][T].
void StudyResults::write_classes(ReplayCell cell, int64_t layer, const Table<double>& spans) {
  const auto [p, b] = cell;
  for (int64_t s = 0; s < spans.rows(); ++s)
    set_value("span_retained_importance", {p, b, layer, s}, mean(spans.row(s)));
  if (wants("span_retained_importance_step"))
    std::ranges::copy(spans.values(),
                      dataset_.row("span_retained_importance_step", {p, b, layer}).begin());
}

void StudyResults::write_heads(ReplayCell cell, int64_t layer, const StepSeries& series,
                               const FullSeries& full) {
  const auto copy = [&](const char* name, const Table<double>& table) {
    std::ranges::copy(table.values(),
                      dataset_.row(name, {cell.record, cell.budget, layer}).begin());
  };
  copy("retained_importance_head", series.importance_head);
  copy("retained_attention_head", series.attention_head);
  Table<double> relative = series.error_head;
  for (int64_t h = 0; h < relative.rows(); ++h) {
    relative_errors(series.error_head.row(h), full.output_head.row(h), relative.row(h));
  }
  copy("output_error_head", relative);
}

void StudyResults::write_correlation(ReplayCell cell, int64_t layer, int64_t first,
                                     const std::vector<Moments>& all,
                                     const std::vector<Moments>& kept,
                                     const std::vector<double>& count) {
  std::vector<double> pearson(all.size());
  std::vector<double> cosine(all.size());
  for (size_t t = 0; t < all.size(); ++t) {
    pearson[t] = importance_pearson(all[t], kept[t], count[t]);
    cosine[t] = importance_cosine(all[t], kept[t]);
  }
  write_series("importance_pearson", cell, layer, pearson, first);
  write_series("importance_cosine", cell, layer, cosine, first);
}

void StudyResults::write_regret(ReplayCell cell, int64_t layer, const StepSeries& own,
                                const StepSeries* oracle_mean, const StepSeries* oracle_step) {
  if (oracle_mean != nullptr) {
    set_value("regret_mean", {cell.record, cell.budget, layer},
              mean(oracle_mean->importance) - mean(own.importance));
  }
  if (oracle_step != nullptr) {
    write_series("regret_step", cell, layer, differences(oracle_step->importance, own.importance));
  }
}

void StudyResults::write_minmax(ReplayCell cell, int64_t layer, double bound) {
  set_value("minmax_bound", {cell.record, cell.budget, layer}, bound);
}

void StudyResults::add_memory(ReplayCell cell, const LayerWork& work,
                              const ReplayOutcome& outcome) {
  const CacheShape shape{work.kv_heads(),  work.group_size(), work.trace().k.dim(2),
                         work.value_dim(), work.entries(),    options_.element_bytes};
  const Settings& settings = records_[static_cast<size_t>(cell.record)].settings;
  const KeptSets& first = outcome.first_kept ? *outcome.first_kept : *outcome.kept;
  memory_[{cell.record, cell.budget}].add_layer(shape, first,
                                                quantized_heads(work, outcome, settings),
                                                side_bytes(work, first, settings));
}

void StudyResults::write_memory() {
  for (const auto& [cell, model] : memory_) {
    const auto [p, b] = cell;
    const MemoryUse use = model.use();
    set_value("entries_kv", {p, b}, use.entries_kv);
    set_value("entries_query", {p, b}, use.entries_query);
    set_value("realised_ratio", {p, b}, use.realised_ratio);
    set_value("realised_ratio_min", {p, b}, use.realised_ratio_min);
    set_value("realised_ratio_max", {p, b}, use.realised_ratio_max);
    set_value("bytes_ragged", {p, b}, use.bytes_ragged);
    set_value("bytes_grouped", {p, b}, use.bytes_grouped);
    set_value("bytes_quantized", {p, b}, use.bytes_quantized);
    set_value("bytes_side", {p, b}, use.bytes_side);
    set_value("compression", {p, b}, use.compression);
    if (!options_.bandwidth || !options_.peak) continue;
    const double bytes = use.bytes_full / use.compression;
    const double time = roofline_time(bytes, use.flops, *options_.bandwidth, *options_.peak);
    const double full =
        roofline_time(use.bytes_full, use.flops_full, *options_.bandwidth, *options_.peak);
    set_value("decode_time", {p, b}, time);
    set_value("decode_speedup", {p, b}, full / time);
  }
}

/// Does compression change the order of the spans? Nothing is generated, and without compression
/// all scores are 1, so that the largest budget below n stands for the order to be kept.
void StudyResults::write_span_order() {
  if (!wants("span_spearman")) return;
  const int64_t n = reader_.info().prompt_len;
  const auto budgets = static_cast<int64_t>(options_.budgets.size());
  int64_t reference = -1;
  for (int64_t b = 0; b < budgets; ++b) {
    const auto entries = [&](int64_t at) {
      return options_.budgets[static_cast<size_t>(at)].entries(n);
    };
    if (entries(b) < n && (reference < 0 || entries(b) > entries(reference))) reference = b;
  }
  const auto scores = [&](int64_t policy, int64_t budget) {
    std::vector<double> classes;
    for (size_t s = 0; s < spans_.size(); ++s) {
      std::vector<double> layers;
      for (int64_t layer = 0; layer < dataset_.size("layer"); ++layer)
        layers.push_back(dataset_.row("span_retained_importance",
                                      {policy, budget, layer, static_cast<int64_t>(s)})[0]);
      if (spans_[s].labelled) classes.push_back(mean(layers));
    }
    return classes;
  };
  const auto undefined = [](double score) { return std::isnan(score); };
  for (int64_t p = 0; p < dataset_.size("policy") && reference >= 0; ++p) {
    const std::vector<double> wanted = scores(p, reference);
    for (int64_t b = 0; b < budgets; ++b) {
      const std::vector<double> own = scores(p, b);
      if (std::ranges::any_of(own, undefined) || std::ranges::any_of(wanted, undefined)) continue;
      set_value("span_spearman", {p, b}, spearman(own, wanted));
    }
  }
}

void StudyResults::write_stream() {
  for (const auto& [cell, error] : stream_) {
    const auto [p, b] = cell;
    const std::vector<double> relative = error.relative_to(last_norm_);
    std::ranges::copy(relative, dataset_.row("stream_error", {p, b}).begin());
    set_value("stream_error_rms", {p, b}, root_mean_square(relative));
  }
}

Dataset StudyResults::finish(const Backend& backend) {
  write_memory();
  write_span_order();
  write_stream();
  describe_run(dataset_, reader_, options_, records_, backend,
               static_cast<int64_t>(projected_steps_.size()));
  return std::move(dataset_);
}

}  // namespace kvsim
