#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>

#include "analysis/dataset.hpp"
#include "run/study/study.hpp"

namespace kvsim {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kMostSteps = 1e15;  // counts are exact in float64 far beyond
constexpr double kLeastReal = std::numeric_limits<double>::min();
constexpr double kMostReal = std::numeric_limits<double>::max();

constexpr const char* kNorms[] = {"l1", "l2"};
constexpr const char* kScopes[] = {"prompt", "evictable", "all"};

using O = StudyOptions;

/// An option that is one member of StudyOptions, whose type says how it is read and set. The flag
/// is the key with dashes, if it is not given.
template <auto Member>
StudyOption of(StudyOption option) {
  using Value = std::remove_cvref_t<decltype(std::declval<O>().*Member)>;
  if (option.flag.empty()) option.flag = option.key;
  std::ranges::replace(option.flag, '_', '-');
  if constexpr (requires(Value value) { value.has_value(); }) {
    option.is_set = [](const O& o) { return (o.*Member).has_value(); };
    option.read = [](const O& o) -> Json { return *(o.*Member); };
    option.set_number = [](O& o, double value) {
      o.*Member = static_cast<typename Value::value_type>(value);
    };
  } else {
    option.read = [](const O& o) -> Json { return o.*Member; };
    if constexpr (std::is_arithmetic_v<Value>)
      option.set_number = [](O& o, double value) { o.*Member = static_cast<Value>(value); };
    else
      option.add_name = [](O& o, const std::string& name) {
        (o.*Member).insert((o.*Member).end(), name);
      };
  }
  return option;
}

std::vector<StudyOption> declared() {
  return {
      {.key = "importance",
       .flag = "importance",
       .placeholder = "l1|l2",
       .meaning = "norm of v W in the importance (default: l1)",
       .type = OptionType::word,
       .words = {std::begin(kNorms), std::end(kNorms)},
       .read = [](const O& o) -> Json { return kNorms[o.importance == Norm::l1 ? 0 : 1]; },
       .set_number = [](O& o, double word) { o.importance = word == 0 ? Norm::l1 : Norm::l2; }},
      {.key = "scope",
       .flag = "scope",
       .placeholder = "prompt|evictable|all",
       .meaning = "entries that shares are taken over: the prompt's, without protected ones, or "
                  "everything visible (default: prompt)",
       .type = OptionType::word,
       .words = {std::begin(kScopes), std::end(kScopes)},
       .read = [](const O& o) -> Json { return kScopes[static_cast<size_t>(o.scope)]; },
       .set_number = [](O& o, double word) { o.scope = static_cast<Scope>(word); }},
      of<&O::outlier>({.key = "outlier",
                       .placeholder = "X",
                       .meaning = "steps with less retained importance are counted (default: 0.5)",
                       .type = OptionType::real,
                       .high = 1}),
      of<&O::wo_steps>(
          {.key = "wo_steps",
           .placeholder = "K",
           .meaning = "evenly spaced steps whose errors are computed; 0: all (default: "
                      "all, but fewer where a long trace of a large model makes that "
                      "dear)",
           .type = OptionType::count,
           .high = kMostSteps}),
      of<&O::metrics>({.key = "metrics",
                       .flag = "metric",
                       .placeholder = "LIST",
                       .meaning = "further metrics to compute, repeatable",
                       .type = OptionType::names,
                       .known = known_metrics}),
      of<&O::per_head>(
          {.key = "per_head", .meaning = "also measure every query head and KV head by itself"}),
      of<&O::save_keep>(
          {.key = "save_keep", .meaning = "also save what became of every prompt entry"}),
      of<&O::horizon>({.key = "horizon",
                       .placeholder = "D",
                       .meaning = "steps ahead that score estimates predict (default: 1)",
                       .type = OptionType::count,
                       .low = 1,
                       .high = kMostSteps}),
      of<&O::span_complements>(
          {.key = "span_complements",
           .flag = "span-complement",
           .placeholder = "NAME",
           .meaning = "adds a span !NAME: the prompt tokens outside NAME; repeatable",
           .type = OptionType::names}),
      of<&O::element_bytes>({.key = "element_bytes",
                             .placeholder = "E",
                             .meaning = "bytes of a cached number in the memory model (default: 2)",
                             .type = OptionType::count,
                             .low = 1,
                             .high = 16}),
      {.key = "equal_bytes",
       .flag = "equal-bytes",
       .placeholder = "FORM",
       .meaning = "a budget is a share of the full cache's bytes, and every policy keeps as many "
                  "entries as fit: flattened, padded, paged or in-place (docs/metrics.md 9)",
       .type = OptionType::word,
       .words = byte_forms(),
       .is_set = [](const O& o) { return !o.equal_bytes.empty(); },
       .read = [](const O& o) -> Json { return o.equal_bytes; },
       .set_number = [](O& o, double word) { o.equal_bytes = byte_forms()[word]; }},
      of<&O::bandwidth>({.key = "bandwidth",
                         .placeholder = "X",
                         .meaning = "bytes/s of the device, for the roofline; with --peak",
                         .type = OptionType::real,
                         .low = kLeastReal,
                         .high = kMostReal}),
      of<&O::peak>({.key = "peak",
                    .placeholder = "X",
                    .meaning = "flop/s of the device, for the roofline; with --bandwidth",
                    .type = OptionType::real,
                    .low = kLeastReal,
                    .high = kMostReal})};
}

/// A member that is added to StudyOptions makes this not compile: declare it above (or, where it is
/// what is replayed and not how it is measured, add it to the texts of run/sweep/sweep_plan.cpp).
[[maybe_unused]] void names_every_member(const StudyOptions& options) {
  [[maybe_unused]] const auto& [records, budgets, layers, seed, scope, importance, outlier,
                                wo_steps, horizon, metrics, span_complements, per_head, save_keep,
                                element_bytes, equal_bytes, bandwidth, peak,
                                command_line] = options;
}

}  // namespace

bool StudyOption::set(StudyOptions& options, const Json& value) const {
  if (type == OptionType::names || type == OptionType::word) {
    if (!value.is_string()) return false;
    const auto name = value.get<std::string>();
    const bool word = type == OptionType::word;
    const std::vector<std::string> all = word ? words : known ? known() : std::vector{name};
    const auto found = std::ranges::find(all, name);
    if (found == all.end()) return false;
    word ? set_number(options, static_cast<double>(found - all.begin())) : add_name(options, name);
    return true;
  }
  const bool typed = type == OptionType::flag    ? value.is_boolean()
                     : type == OptionType::count ? value.is_number_integer()
                                                 : value.is_number();
  if (!typed) return false;
  const double number = value.is_boolean() ? value.get<bool>() : value.get<double>();
  if (type != OptionType::flag && (number < low || number > high)) return false;
  set_number(options, number);
  return true;
}

std::string StudyOption::expected() const {
  switch (type) {
    case OptionType::flag: return "true or false";
    case OptionType::word: return fmt::format("one of {}", fmt::join(words, ", "));
    case OptionType::names: return "a name";
    case OptionType::count:
      return high >= kMostSteps ? fmt::format("an integer >= {}", low)
                                : fmt::format("an integer in [{}, {}]", low, high);
    case OptionType::real: break;
  }
  return high >= kMostReal ? "a number > 0" : fmt::format("a number in [{}, {}]", low, high);
}

const std::vector<StudyOption>& study_options() {
  static const std::vector<StudyOption> options = declared();
  return options;
}

nlohmann::ordered_json options_text(const StudyOptions& options) {
  Json text;
  for (const StudyOption& option : study_options())
    if (option.is_set == nullptr || option.is_set(options)) text[option.key] = option.read(options);
  return text;
}

StudyOptions options_of(const Dataset& results) {
  StudyOptions options;
  const Json values = Json::parse(results.text_attribute("config"), nullptr, false);
  for (const StudyOption& option : study_options())
    if (values.is_object() && values.contains(option.key)) {
      const Json& value = values[option.key];
      if (option.type != OptionType::names)
        option.set(options, value);
      else
        for (const Json& name : value) option.set(options, name);
    }
  return options;
}

void check_together(const StudyOptions& options, const std::string& where) {
  if (options.bandwidth.has_value() == options.peak.has_value()) return;
  usage_error(
      {options.peak ? "no bandwidth" : "no peak", where, "", "bandwidth and peak together"});
}

}  // namespace kvsim
