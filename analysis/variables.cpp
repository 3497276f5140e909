#include "analysis/variables.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <sstream>
#include <stdexcept>

namespace kvsim {
namespace {

constexpr const char* kCell = "policy budget";
constexpr const char* kLayer = "policy budget layer";
constexpr const char* kStep = "policy budget layer step";
constexpr auto kReal = VariableType::float64;

std::vector<VariableDeclaration> coordinates() {
  return {
      {"policy", "policy", VariableType::text, "1", "policy record",
       "canonical text of the record: preset, variant, and the keys that differ from the preset",
       kAlways},
      {"budget", "budget", kReal, "1", "budget as a share of the prompt",
       "the typed ratio, or min(c, n)/n for a count c", kAlways},
      {"layer", "layer", VariableType::int32, "1", "layer of the model", "the model's own index",
       kAlways},
      {"head", "head", VariableType::int32, "1", "query head", "0..Hq-1", kAlways},
      {"kv_head", "kv_head", VariableType::int32, "1", "KV head", "0..Hkv-1", kAlways},
      {"step", "step", VariableType::int64, "1", "position of the query",
       "absolute positions >= n with a stored query, ascending", kAlways},
      {"span", "span", VariableType::text, "1", "labelled part of the prompt",
       "span names of the trace; `!NAME` is every prompt token outside NAME (--span-complement)",
       kSpans},
      {"span_begin", "span", VariableType::int64, "1", "first token of a span",
       "position of its first token", kSpans},
      {"span_end", "span", VariableType::int64, "1", "end of a span",
       "position after its last token", kSpans},
      {"position", "position", VariableType::int64, "1", "position of a prompt entry", "0..n-1",
       kSaveKeep},
      {"budget_label", "budget", VariableType::text, "1", "budget as typed", "e.g. `20%` or `512`",
       kAlways},
  };
}

std::vector<VariableDeclaration> retained() {
  return {
      {"retained_importance", kStep, kReal, "1", "retained importance",
       "share of the importance I = A * ‖v W‖, summed over query heads, that falls on kept "
       "entries",
       kAlways},
      {"retained_attention", kStep, kReal, "1", "retained attention",
       "the same with I = A", kAlways},
      {"retained_importance_mean", kLayer, kReal, "1", "mean retained importance",
       "mean over steps", kAlways},
      {"retained_importance_min", kLayer, kReal, "1", "worst retained importance",
       "minimum over steps", kAlways},
      {"retained_importance_p01", kLayer, kReal, "1", "retained importance, percentile 1",
       "percentile 1 over steps", kAlways},
      {"retained_attention_mean", kLayer, kReal, "1", "mean retained attention", "mean over steps",
       kAlways},
      {"retained_attention_min", kLayer, kReal, "1", "worst retained attention",
       "minimum over steps", kAlways},
      {"retained_attention_p01", kLayer, kReal, "1", "retained attention, percentile 1",
       "percentile 1 over steps", kAlways},
      {"outlier_count", kLayer, kReal, "count", "steps with low retained importance",
       "number of steps whose retained importance is below --outlier (0.5)", kAlways},
  };
}

std::vector<VariableDeclaration> errors() {
  return {
      {"output_error", kStep, kReal, "1", "relative error of the layer's output",
       "‖sum over heads of (z^ - z) W‖ / ‖sum over heads of z W‖; NaN at steps that --wo-steps "
       "leaves out",
       kAlways},
      {"output_error_mean", kLayer, kReal, "1", "mean output error",
       "mean over the evaluated steps", kAlways},
      {"output_error_max", kLayer, kReal, "1", "worst output error",
       "maximum over the evaluated steps", kAlways},
      {"output_error_p99", kLayer, kReal, "1", "output error, percentile 99",
       "percentile 99 over the evaluated steps", kAlways},
      {"output_error_undefined", kLayer, kReal, "count", "steps with undefined output error",
       "evaluated steps with an error although the full cache's output is 0", kAlways},
      {"residual_error", kStep, kReal, "1", "error relative to the residual stream",
       "‖sum over heads of (z^ - z) W‖ / norm of the residual stream that enters the layer",
       kResidualNorm},
      {"residual_error_mean", kLayer, kReal, "1", "mean residual error",
       "mean over the evaluated steps", kResidualNorm},
      {"residual_error_max", kLayer, kReal, "1", "worst residual error",
       "maximum over the evaluated steps", kResidualNorm},
      {"residual_error_p99", kLayer, kReal, "1", "residual error, percentile 99",
       "percentile 99 over the evaluated steps", kResidualNorm},
      {"stream_error", "policy budget step", kReal, "1", "error of the stream, all layers together",
       "root of the summed squares of the layers' ‖sum over heads of (z^ - z) W‖ / norm of the "
       "residual stream that enters the last layer; over the layers of the run",
       kResidualNorm},
      {"stream_error_rms", "policy budget", kReal, "1", "error of the stream, over steps",
       "root mean square over the evaluated steps; among the best predictors of the loss of a model "
       "that runs with the kept sets (docs/prediction.md)",
       kResidualNorm},
  };
}

std::vector<VariableDeclaration> kept() {
  return {
      {"kept", "policy budget layer kv_head", kReal, "count", "kept prompt entries of a KV head",
       "prompt entries that are their own slot; NaN for policies with granularity=query", kAlways},
      {"kept_query", "policy budget layer head", kReal, "count",
       "kept prompt entries of a query head", "the same for policies with granularity=query",
       kQueryHeads},
      {"tied_at_threshold", "policy budget layer kv_head", kReal, "count",
       "candidates tied with the last one kept",
       "candidates whose score equals that of the last one kept by score, itself included; 0 if "
       "none was kept by score",
       kAlways},
      {"tied_at_threshold_query", "policy budget layer head", kReal, "count",
       "candidates tied with the last one kept", "the same for policies with granularity=query",
       kQueryHeads},
      {"keep_rate", "policy budget layer span", kReal, "1", "kept share of a span",
       "mean over the span's tokens and the heads of [kept]", kSpans},
      {"bias_index", "policy budget layer span", kReal, "1", "keep rate above the unbiased line",
       "keep_rate minus the share of all entries that the layer keeps; 0 is unbiased", kSpans},
      {"bias_spread", kLayer, kReal, "1", "spread of keep rates",
       "largest minus smallest keep_rate over the spans of the trace", kSpans},
      {"span_retained_importance", "policy budget layer span", kReal, "1",
       "class score: retained importance of a span",
       "share of the importance of the span's own entries that falls on kept ones, pooled over "
       "query heads, mean over steps; a proxy of how well the instruction survives",
       kSpans},
      {"span_spearman", kCell, kReal, "1", "order of the spans under compression",
       "Spearman over the trace's spans of their class scores (mean over layers) with those at the "
       "largest budget below n; NaN for fewer than 2 spans or equal scores",
       kSpans},
      {"span_retained_importance_step", "policy budget layer span step", kReal, "1",
       "retained importance of a span", "the same at each step", kSpans | kOnRequest},
      {"keep_rate_head", "policy budget layer kv_head span", kReal, "1",
       "kept share of a span in one KV head", "NaN for policies with granularity=query",
       kSpans | kPerHead},
      {"kept_mask", "policy budget layer kv_head position", VariableType::uint8, "1",
       "what became of each prompt entry", "255 for policies with granularity=query", kSaveKeep,
       {{0, "dropped"}, {1, "kept"}, {2, "merged"}}},
      {"kept_mask_query", "policy budget layer head position", VariableType::uint8, "1",
       "what became of each prompt entry", "the same for policies with granularity=query",
       kSaveKeep | kQueryHeads, {{0, "dropped"}, {1, "kept"}, {2, "merged"}}},
  };
}

std::vector<VariableDeclaration> memory() {
  return {
      {"entries_kv", kCell, kReal, "count", "slots of the compressed cache",
       "sum over layers and KV heads; with granularity=query the union over the group",
       kAlways},
      {"entries_query", kCell, kReal, "count", "slots counted per query head",
       "sum over layers and query heads; only for policies with granularity=query", kQueryHeads},
      {"realised_ratio", kCell, kReal, "1", "share of the prompt that is kept",
       "entries_kv / (layers * Hkv * n)", kAlways},
      {"realised_ratio_min", kCell, kReal, "1", "smallest kept share of a head",
       "minimum over layers and KV heads", kAlways},
      {"realised_ratio_max", kCell, kReal, "1", "largest kept share of a head",
       "maximum over layers and KV heads", kAlways},
      {"bytes_ragged", kCell, kReal, "bytes", "memory with a length per head",
       "slots * (d + dv) * --element-bytes + 4 per KV head", kAlways},
      {"bytes_grouped", kCell, kReal, "bytes", "memory with one tensor per layer",
       "sum over layers of Hkv * largest head's slots * (d + dv) * --element-bytes", kAlways},
      {"bytes_quantized", kCell, kReal, "bytes", "memory when quantised",
       "codes, 32 bits per group, and the rest at --element-bytes; NaN for policies that do not "
       "quantise",
       kQuantizes},
      {"quantization_error", kStep, kReal, "1", "quantisation's part of the output error",
       "‖sum over heads of (z^ - z^ without quantising) W‖ / ‖sum over heads of z W‖: what is added "
       "to the error of the same slots unrounded; NaN for policies that do not quantise",
       kQuantizes},
      {"quantization_error_mean", kLayer, kReal, "1", "mean quantisation error",
       "mean over the evaluated steps", kQuantizes},
      {"bytes_side", kCell, kReal, "bytes", "memory of votes, biases and estimates",
       "4 per vote, 4 g per bias, 4 per estimate; 0 without merging", kAlways},
      {"compression", kCell, kReal, "1", "compression",
       "bytes of the full cache / bytes of the compressed one", kAlways},
      {"decode_time", kCell, kReal, "s", "attention time of one decode step by the roofline",
       "max(bytes read / --bandwidth, flops / --peak)", kRoofline},
      {"decode_speedup", kCell, kReal, "1", "speed-up of one decode step by the roofline",
       "decode time of the full cache / of the compressed one; an upper bound", kRoofline},
  };
}

std::vector<VariableDeclaration> merging() {
  constexpr unsigned kAny = kMerges | kOnRequest;
  return {
      {"represented_importance", kStep, kReal, "1", "importance of kept and merged entries",
       "retained_importance with the entries counted in that are part of another's slot", kAny},
      {"attention_sag", kStep, kReal, "1", "attention sag",
       "sum over merged slots of (attention of their entries in the full cache - attention of the "
       "slot), mean over query heads; positive: the slots lost attention; 0 without merged slots",
       kAny},
      {"attention_shift", kStep, kReal, "1", "attention shift",
       "the same with absolute values of the brackets", kAny},
      {"dropped_attention", kStep, kReal, "1", "attention on dropped entries",
       "attention of the full cache on entries that no slot holds, mean over query heads", kAny},
      {"log_mass_defect", kStep, kReal, "nat", "log-mass defect",
       "log-weight + logit of a merged slot - log-sum-exp of its entries' logits, mean over heads "
       "and merged slots; NaN without any",
       kAny},
      {"log_mass_defect_p01", kLayer, kReal, "nat", "log-mass defect, percentile 1",
       "percentile 1 over heads, merged slots and steps", kAny},
      {"log_mass_defect_p99", kLayer, kReal, "nat", "log-mass defect, percentile 99",
       "percentile 99 over heads, merged slots and steps", kAny},
      {"merge_count", kLayer, kReal, "count", "merged slots",
       "slots that hold two or more entries, after the last compression", kAny},
      {"zip_undefined", kLayer, kReal, "count", "merges with an undefined scale",
       "merges at which KeepKV Eq. 7 divides by nothing; its scale is 1 there", kAny},
      {"zip_scale_p01", kLayer, kReal, "1", "scale of a merged key, percentile 1",
       "percentile 1 of f in KeepKV Eq. 7; NaN for other merges", kAny},
      {"zip_scale_p99", kLayer, kReal, "1", "scale of a merged key, percentile 99",
       "percentile 99 of f in KeepKV Eq. 7; NaN for other merges", kAny},
  };
}

std::vector<VariableDeclaration> all_variables() {
  std::vector<VariableDeclaration> all;
  for (auto part : {coordinates, retained, errors, kept, memory, merging, variables_on_request}) {
    for (VariableDeclaration& declaration : part()) all.push_back(std::move(declaration));
  }
  return all;
}

std::string occasion_text(const VariableDeclaration& variable) {
  if (variable.occasion == kAlways) return "always";
  static const std::pair<unsigned, const char*> kTexts[] = {
      {kResidualNorm, "the trace has `residual_norm`"},
      {kSpans, "the trace has spans"},
      {kQueryHeads, "a policy has `granularity=query`"},
      {kPerHead, "`--per-head`"},
      {kSaveKeep, "`--save-keep`"},
      {kQuantizes, "a policy quantises"},
      {kRoofline, "`--bandwidth` and `--peak`"},
      {kMerges, "a policy merges"},
  };
  std::string text;
  for (const auto& [bit, meaning] : kTexts) {
    if (variable.occasion & bit) text += (text.empty() ? "" : "; ") + std::string(meaning);
  }
  if (variable.occasion & kOnRequest) {
    const bool needs_spans = variable.occasion & kSpans;
    const std::string measures = variable.measures;
    text += fmt::format("{}`--metric {}`", text.empty() ? "" : needs_spans ? "; " : "; or ",
                        measures.empty() ? variable.name : measures.substr(0, measures.find(' ')));
    if (measures.find(' ') != std::string::npos)
      text += fmt::format(" or `{}`", measures.substr(measures.find(' ') + 1));
  }
  return text;
}

std::vector<std::string> words(const char* text) {
  std::istringstream in(text);
  std::vector<std::string> all;
  for (std::string word; in >> word;) all.push_back(word);
  return all;
}

const char* type_text(VariableType type) {
  static constexpr const char* kNames[] = {"float64", "int32", "int64", "uint8", "string"};
  return kNames[static_cast<size_t>(type)];
}

VariableValues undefined_values(VariableType type, size_t count) {
  switch (type) {
    case VariableType::float64:
      return std::vector<double>(count, std::numeric_limits<double>::quiet_NaN());
    case VariableType::int32: return std::vector<int32_t>(count, 0);
    case VariableType::int64: return std::vector<int64_t>(count, 0);
    case VariableType::uint8: return std::vector<uint8_t>(count, 255);
    case VariableType::text: return std::vector<std::string>(count);
  }
  throw std::logic_error("unknown type of a variable");
}

}  // namespace

std::vector<std::string> VariableDeclaration::dim_names() const { return words(dims); }

const std::vector<VariableDeclaration>& declared_variables() {
  static const std::vector<VariableDeclaration> all = all_variables();
  return all;
}

const VariableDeclaration& declared(std::string_view name) {
  for (const VariableDeclaration& declaration : declared_variables()) {
    if (name == declaration.name) return declaration;
  }
  throw std::logic_error("no variable is declared as " + std::string(name));
}

std::vector<std::string> metrics_on_request() {
  std::vector<std::string> names;
  for (const VariableDeclaration& declaration : declared_variables()) {
    if (!(declaration.occasion & kOnRequest)) continue;
    std::vector<std::string> own = words(declaration.measures);
    if (own.empty()) own = {declaration.name};
    for (std::string& name : own)
      if (std::ranges::find(names, name) == names.end()) names.push_back(std::move(name));
  }
  return names;
}

std::vector<std::string> known_metrics() {
  std::vector<std::string> names = metrics_on_request();
  for (const VariableDeclaration& declaration : declared_variables())
    names.push_back(declaration.name);
  return names;
}

std::set<std::string> variables_of(const std::set<std::string>& metrics) {
  std::set<std::string> measures = metrics;
  for (const VariableDeclaration& declaration : declared_variables())
    if (metrics.contains(declaration.name))
      for (const std::string& measure : words(declaration.measures)) measures.insert(measure);
  std::set<std::string> names;
  for (const VariableDeclaration& declaration : declared_variables()) {
    const std::vector<std::string> own = words(declaration.measures);
    const auto wanted = [&](const std::string& measure) { return measures.contains(measure); };
    if (metrics.contains(declaration.name) || std::ranges::any_of(own, wanted))
      names.insert(declaration.name);
  }
  return names;
}

bool is_written(const VariableDeclaration& variable, unsigned occasion,
                const std::set<std::string>& metrics) {
  if (variable.occasion & kSpans && !(occasion & kSpans)) return false;
  const unsigned rest = variable.occasion & ~kSpans;
  if (rest & kOnRequest && metrics.contains(variable.name)) return true;
  if (rest == kOnRequest) return false;
  return (rest & ~kOnRequest & ~occasion) == 0;
}

Variable make_variable(const VariableDeclaration& declaration, const Dataset& dataset) {
  Variable variable;
  variable.name = declaration.name;
  variable.dims = declaration.dim_names();
  variable.units = declaration.units;
  variable.long_name = declaration.long_name;
  variable.flags = declaration.flags;
  variable.values = undefined_values(declaration.type,
                                     static_cast<size_t>(dataset.count(variable.dims)));
  return variable;
}

std::string variables_markdown() {
  std::string text =
      "# Variables of a results file\n\n"
      "Generated from `analysis/variables.cpp`; after a change there, run\n"
      "`KVSIM_UPDATE_DOCS=1 kvsim_tests \"[docs]\"`. Undefined values are NaN (255 in `uint8`).\n"
      "n is the number of prompt entries, t a later step, A attention of the full cache, z a head's\n"
      "output before W_O (W), z^ that of the compressed cache.\n\n"
      "| variable | dimensions | type | unit | meaning | written when |\n"
      "|---|---|---|---|---|---|\n";
  for (const VariableDeclaration& variable : declared_variables()) {
    std::string dims;
    for (const std::string& dim : variable.dim_names()) dims += (dims.empty() ? "" : ", ") + dim;
    text += fmt::format("| `{}` | {} | {} | {} | {}: {} | {} |\n", variable.name, dims,
                        type_text(variable.type), variable.units, variable.long_name,
                        variable.definition, occasion_text(variable));
  }
  return text;
}

}  // namespace kvsim
