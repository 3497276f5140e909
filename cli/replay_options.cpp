#include "cli/replay_options.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "analysis/dataset.hpp"
#include "cli/command.hpp"
#include "cli/options.hpp"
#include "cli/terminal.hpp"
#include "run/study/study.hpp"

namespace kvsim::cli {

std::vector<std::string> chosen_names(const std::vector<std::string>& lists,
                                      const std::string& name,
                                      const std::vector<std::string>& known,
                                      const std::vector<std::string>& shown) {
  std::vector<std::string> chosen;
  for (const std::string& list : lists)
    for (std::string& item : split_list(list, "--" + name)) {
      if (!contains(known, item))
        usage_error({"unknown " + name, "--" + name, item,
                     fmt::format("some of {}", fmt::join(shown, ", ")), did_you_mean(item, known)});
      if (!contains(chosen, item)) chosen.push_back(std::move(item));
    }
  return chosen;
}

namespace {

/// Records that answer "which policy loses least on this trace?" without being asked further:
/// baselines, the papers' policies, KVzip and the two found here (studies/reread.md), hindsight.
const std::vector<std::string> kDefaultPolicies = {
    "random",           "streaming",   "knorm",  "tova",  "h2o",
    "snapkv",           "defensivekv", "restkv", "kvzip", "rehearsal:recent",
    "rehearsal:reread", "oracle-mean"};
const std::vector<std::string> kDefaultBudgets = {"0.1", "0.2", "0.3", "0.5", "0.7"};
/// Parts that --fragility takes apart: the heads of a layer compete, as Algorithm 2 of DefensiveKV
/// has it, and as many entries for each head beside it; and hindsight.
const std::vector<std::string> kFragilePolicies = {"importance,allocate=ada,ada_floor=0",
                                                   "importance", "oracle-mean"};
const std::vector<std::string> kFragileBudgets = {"0.5"};

/// The records that take those of the request apart; at least one of them must have a window.
void add_fragility(Request& request) {
  request.fragility = fragility_groups(request.options.records);
  if (request.fragility.empty())
    usage_error({.what = "no policy aggregates over a window of queries",
                 .where = "--fragility",
                 .expected = "a record with queries=window and a count as its window",
                 .hint = "importance and snapkv are"});
  for (const FragilityGroup& group : request.fragility) {
    for (const std::string& single : group.singles)
      request.options.records.push_back(Record::parse(single));
    for (const std::string& record : {group.max, group.defensive, group.published})
      request.options.records.push_back(Record::parse(record));
  }
}

}  // namespace

std::vector<Option> measure_options() {
  std::vector<Option> all;
  for (const StudyOption& option : study_options()) {
    if (option.known != nullptr) continue;  // --metric lists them
    all.push_back({option.flag, option.type == OptionType::flag ? "" : option.placeholder,
                   option.meaning, option.type == OptionType::names});
  }
  all.push_back(
      {"fragility", "",
       "also replay what each query of the window sees alone, the maximum over them, and "
       "DefensiveKV's step and published code, and compare estimated with true risk (metric risk); "
       "without --policy that of importance, heads competing and not, without --budget at 0.5"});
  return all;
}

void read_measure_options(const Values& values, StudyOptions& options) {
  for (const StudyOption& option : study_options()) {
    if (!has(values, option.flag)) continue;
    const std::string where = "--" + option.flag;
    if (option.type == OptionType::names) {
      std::vector<std::string> names = texts(values, option.flag);
      if (option.known != nullptr)
        names = chosen_names(names, option.flag, option.known(), metrics_on_request());
      for (const std::string& name : names) option.add_name(options, name);
    } else if (option.type == OptionType::flag) {
      option.set_number(options, 1);
    } else {
      const std::string typed = text(values, option.flag);
      if (option.type == OptionType::word) {
        if (!option.set(options, typed))
          usage_error({"unknown value", where, typed, option.expected()});
      } else if (option.type == OptionType::count)
        option.set_number(
            options, static_cast<double>(parse_count(typed, where, static_cast<int64_t>(option.low),
                                                     static_cast<int64_t>(option.high))));
      else
        option.set_number(options, parse_real(typed, where, option.low, option.high));
    }
  }
  check_together(options, "replay");
}

Request read_request(const Values& values) {
  Request request;
  StudyOptions& options = request.options;
  const bool fragility = has(values, "fragility");
  request.default_policies = !has(values, "policy") && !fragility;
  options.records = records_of(values, fragility ? kFragilePolicies : kDefaultPolicies);
  options.budgets = budgets_of(values, fragility ? kFragileBudgets : kDefaultBudgets);
  if (fragility) add_fragility(request);
  options.seed = seed(values);
  read_measure_options(values, options);
  options.command_line = command_line();
  return request;
}

std::vector<Record> served_records(const Request& request, const TraceReader& reader,
                                   const std::vector<int>& layers) {
  if (!request.default_policies) return request.options.records;
  // A wrong name is no policy's fault.
  span_tokens(reader.info(), request.options.span_complements);
  std::vector<Record> served;
  std::map<std::string, std::pair<std::string, std::string>> left_out;  // need: records, why
  for (const Record& record : request.options.records) {
    StudyOptions alone = request.options;
    alone.records = {record};
    alone.layers = layers;
    alone.metrics.clear();
    try {
      plan_study(reader, alone);
      served.push_back(record);
    } catch (const Error& error) {
      if (error.fault() != Fault::bad_data) throw;
      const Error::Parts& why = error.parts();
      auto& [records, reason] = left_out[why.found + why.expected + why.hint];
      if (records.empty()) reason = error.what();
      records += (records.empty() ? "" : ", ") + record.canonical();
    }
  }
  for (const auto& [need, out] : left_out) note(out.first + " left out: " + out.second);
  return served;
}

}  // namespace kvsim::cli
