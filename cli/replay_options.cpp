#include "cli/replay_options.hpp"

#include <algorithm>
#include <limits>

#include "cli/chosen_names.hpp"
#include "cli/functions.hpp"
#include "cli/options.hpp"
#include "cli/parse.hpp"
#include "cli/terminal.hpp"
#include "run/measures/variables.hpp"
#include "sim/core/error.hpp"

namespace kvsim::cli {
namespace {

/// What answers "which policy loses least on this trace?" without being asked further.
constexpr const char* kDefaultPolicies[] = {"random", "streaming",  "knorm",      "tova",
                                            "h2o",    "snapkv",     "importance", "defensivekv",
                                            "restkv", "oracle-mean"};
constexpr const char* kDefaultBudgets[] = {"0.1", "0.2", "0.3", "0.5", "0.7"};
/// What --fragility takes apart: DefensiveKV's Figure 1, with hindsight beside it.
constexpr const char* kFragilePolicies[] = {"importance", "oracle-mean"};
constexpr double kHuge = std::numeric_limits<double>::max();

/// One of a few words.
template <class Enum>
Enum one_of(const Values& values, const char* option,
            std::initializer_list<std::pair<const char*, Enum>> words, Enum fallback) {
  if (!has(values, option)) return fallback;
  const std::string typed = text(values, option);
  std::string expected;
  for (const auto& [word, meaning] : words) {
    if (typed == word) return meaning;
    expected += (expected.empty() ? "" : ", ") + std::string(word);
  }
  usage_error({.what = "unknown value",
               .where = std::string("--") + option,
               .found = typed,
               .expected = "one of " + expected});
}

std::set<std::string> chosen_metrics(const Values& values) {
  const std::vector<std::string> chosen = chosen_names(texts(values, "metric"), "metric",
                                                       known_metrics(), metrics_on_request());
  return {chosen.begin(), chosen.end()};
}

std::optional<double> positive_real(const Values& values, const char* option) {
  if (!has(values, option)) return std::nullopt;
  return parse_real(text(values, option), std::string("--") + option,
                    std::numeric_limits<double>::min(), kHuge);
}

/// The records that take those of the request apart; at least one of them must have a window.
void add_fragility(Request& request) {
  request.fragility = fragility_groups(request.options.records);
  if (request.fragility.empty()) {
    usage_error({.what = "no policy aggregates over a window of queries",
                 .where = "--fragility",
                 .expected = "a record with queries=window and a count as its window",
                 .hint = "importance and snapkv are"});
  }
  for (const FragilityGroup& group : request.fragility) {
    for (const std::string& single : group.singles)
      request.options.records.push_back(Record::parse(single));
    for (const std::string& record : {group.max, group.defensive, group.published})
      request.options.records.push_back(Record::parse(record));
  }
}

auto word(const char* placeholder) { return po::value<std::string>()->value_name(placeholder); }

}  // namespace

void add_measure_options(po::options_description& options) {
  options.add_options()("importance", word("l1|l2"), "norm of v W in the importance (default: l1)")(
      "scope", word("prompt|evictable|all"),
      "entries that shares are taken over: the prompt's, without protected ones, or everything "
      "visible (default: prompt)")(
      "outlier", word("X"), "steps with less retained importance are counted (default: 0.5)")(
      "wo-steps", word("K"),
      "evenly spaced steps whose errors are computed; 0: all (default: all, but fewer where a "
      "long trace of a large model makes that dear)")(
      "horizon", word("D"), "steps ahead that score estimates predict (default: 1)")(
      "span-complement", po::value<std::vector<std::string>>()->value_name("NAME")->composing(),
      "adds a span !NAME: the prompt tokens outside NAME; repeatable")(
      "per-head", "also measure every query head and KV head by itself")(
      "fragility", "also replay what each query of the window sees alone, the maximum over them, "
                   "and DefensiveKV's step and published code, and compare estimated with true "
                   "risk (metric risk); without --policy that of importance, without --budget at "
                   "0.5")("save-keep", "also save what became of every prompt entry")(
      "element-bytes", word("E"), "bytes of a cached number in the memory model (default: 2)")(
      "bandwidth", word("X"), "bytes/s of the device, for the roofline; with --peak")(
      "peak", word("X"), "flop/s of the device, for the roofline; with --bandwidth");
}

Request read_request(const Values& values) {
  Request request;
  StudyOptions& options = request.options;
  std::vector<std::string> policies = texts(values, "policy");
  const bool fragility = has(values, "fragility");
  request.default_policies = policies.empty() && !fragility;
  if (policies.empty() && fragility) {
    policies.assign(std::begin(kFragilePolicies), std::end(kFragilePolicies));
  }
  if (policies.empty()) policies.assign(std::begin(kDefaultPolicies), std::end(kDefaultPolicies));
  for (const std::string& policy : policies)
    options.records.push_back(Record::parse(with_functions(policy)));
  std::vector<std::string> budgets = budget_items(values);
  if (budgets.empty() && fragility) budgets = {"0.5"};
  if (budgets.empty()) budgets.assign(std::begin(kDefaultBudgets), std::end(kDefaultBudgets));
  if (fragility) add_fragility(request);
  for (const std::string& budget : budgets) options.budgets.push_back(Budget::parse(budget));
  options.seed = seed(values);
  options.metrics = chosen_metrics(values);
  options.importance = one_of<Norm>(values, "importance", {{"l1", Norm::l1}, {"l2", Norm::l2}},
                                    Norm::l1);
  options.scope = one_of<Scope>(
      values, "scope",
      {{"prompt", Scope::prompt}, {"evictable", Scope::evictable}, {"all", Scope::all}},
      Scope::prompt);
  if (has(values, "outlier")) {
    options.outlier = parse_real(text(values, "outlier"), "--outlier", 0, 1);
  }
  if (has(values, "wo-steps")) {
    options.wo_steps = parse_count(text(values, "wo-steps"), "--wo-steps", 0,
                                   std::numeric_limits<int64_t>::max());
  }
  if (has(values, "horizon")) {
    options.horizon = parse_count(text(values, "horizon"), "--horizon", 1,
                                  std::numeric_limits<int64_t>::max() / 2);
  }
  options.span_complements = texts(values, "span-complement");
  options.per_head = has(values, "per-head");
  options.save_keep = has(values, "save-keep");
  if (has(values, "element-bytes")) {
    options.element_bytes = parse_count(text(values, "element-bytes"), "--element-bytes", 1, 16);
  }
  options.bandwidth = positive_real(values, "bandwidth");
  options.peak = positive_real(values, "peak");
  if (options.bandwidth.has_value() != options.peak.has_value()) {
    usage_error({.what = "--bandwidth and --peak belong together", .where = "replay"});
  }
  options.command_line = command_line();
  return request;
}

std::vector<Record> served_records(const Request& request, const TraceReader& reader,
                                   const std::vector<int>& layers) {
  if (!request.default_policies) return request.options.records;
  std::vector<Record> served;
  for (const Record& record : request.options.records) {
    StudyOptions alone = request.options;
    alone.records = {record};
    alone.layers = layers;
    alone.metrics.clear();
    try {
      Study(reader, alone).check();
      served.push_back(record);
    } catch (const Error& error) {
      if (error.fault() != Fault::bad_data) throw;
      note(record.canonical() + " left out: " + error.what());
    }
  }
  return served;
}

}  // namespace kvsim::cli
