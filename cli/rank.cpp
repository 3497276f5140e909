#include <fmt/format.h>

#include <iostream>
#include <nlohmann/json.hpp>

#include "analysis/ranking.hpp"
#include "analysis/statistics.hpp"
#include "cli/command.hpp"
#include "cli/tables.hpp"
#include "cli/terminal.hpp"
#include "io/side_files.hpp"
#include "run/study/study.hpp"

namespace kvsim::cli::rank_command {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kInput = "standard input";

[[noreturn]] void not_a_contest(const std::string& found) {
  bad_data({"not a list of contests", kInput, found, "JSON as docs/cli.md 2.1 has it"});
}

double number(const Json& value) { return value.is_null() ? kUndefined : value.get<double>(); }

Json plain(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

/// One of `words` by its place.
template <class Word>
Word word_of(const Json& contest, const char* key, const std::vector<std::string>& words) {
  const auto found = std::ranges::find(words, contest.value(key, words.front()));
  if (found == words.end()) not_a_contest(fmt::format("{} {}", key, contest.at(key).dump()));
  return static_cast<Word>(found - words.begin());
}

Contest contest_of(const Json& json) {
  Contest contest;
  const auto series_of = [&](const Json& row) {
    std::vector<double> series;
    for (const Json& value : row) series.push_back(number(value));
    if (!contest.series.empty() && series.size() != contest.series.front().size())
      not_a_contest("series of different lengths");
    return series;
  };
  for (const Json& row : json.at("series")) contest.series.push_back(series_of(row));
  const size_t count = contest.series.size();
  contest.unranked.assign(count, Unranked::ranked);
  contest.held.assign(count, kUndefined);
  const Json unranked = json.value("unranked", Json::array());
  const Json held = json.value("held", Json::array());
  if ((!unranked.empty() && unranked.size() != count) || (!held.empty() && held.size() != count))
    not_a_contest("unranked or held of another length than series");
  for (size_t p = 0; p < unranked.size(); ++p) {
    const int code = unranked[p].get<int>();
    if (code < 0 || code > static_cast<int>(Unranked::holds_less))
      not_a_contest(fmt::format("unranked {}", code));
    contest.unranked[p] = static_cast<Unranked>(code);
  }
  for (size_t p = 0; p < held.size(); ++p) contest.held[p] = number(held[p]);
  for (const Json& policy : json.value("points", Json::array())) {
    contest.points.emplace_back();
    for (const Json& point : policy)
      contest.points.back().push_back({number(point.at("held")), series_of(point.at("series"))});
  }
  if (!contest.points.empty() && contest.points.size() != count)
    not_a_contest("points of another length than series");
  contest.units = word_of<Units>(json, "units", {"steps", "traces"});
  contest.scale = word_of<Scale>(json, "scale", {"plain", "log", "share", "count"});
  contest.more_is_better = json.value("more_is_better", false);
  return contest;
}

Json bounded(const Bounded& one) {
  return {{"value", plain(one.value)},
          {"low", plain(one.interval.low)},
          {"high", plain(one.interval.high)},
          {"chance", plain(one.chance)}};
}

Json answer(const Contest& contest) {
  const Standing found = standing(contest);
  Json rows = Json::array();
  for (size_t p = 0; p < contest.series.size(); ++p) {
    Json row = {{"mark", kMarks[static_cast<size_t>(found.marks[p])]},
                {"estimate", bounded(found.values[p])},
                {"difference", bounded(found.differences[p])}};
    if (!contest.points.empty())
      row["equal_bytes"] = {{"estimate", bounded(found.equal_bytes[p])},
                            {"difference", bounded(found.equal_bytes_differences[p])}};
    if (contest.units == Units::steps) row["block"] = block_length(defined(contest.series[p]));
    rows.push_back(row);
  }
  return {{"rows", rows},
          {"best", found.best < 0 ? Json(nullptr) : Json(found.best)},
          {"held", found.held}};
}

void rank_input() {
  const std::string text{std::istreambuf_iterator<char>(std::cin), {}};
  Json answers = Json::array();
  try {
    const Json contests = Json::parse(text);
    if (!contests.is_array()) not_a_contest("no list");
    for (const Json& one : contests) answers.push_back(answer(contest_of(one)));
  } catch (const Json::exception& error) {
    not_a_contest(error.what());
  }
  fmt::print("{}\n", answers.dump());
}

/// Measurements of a closed loop, as loop_results.py writes it; anything else is bad data.
void check_loop(const Dataset& results, const std::string& file) {
  const std::vector<std::string> cell = {"policy", "budget"};
  const auto expect =
      [&](const char* name, VariableType type, const std::vector<std::string>& dims) {
    const Variable* found = results.find(name);
    if (found != nullptr && (found->type() != type || found->dims != dims))
      bad_data({"wrong form", file, std::string("variable ") + name});
  };
  expect("policy", VariableType::text, {"policy"});
  expect("budget_label", VariableType::text, {"budget"});
  expect("budget", VariableType::float64, {"budget"});
  expect("step", VariableType::int64, {"step"});
  expect("kl_divergence", VariableType::float64, {"policy", "budget", "step"});
  expect("unranked", VariableType::uint8, cell);
  for (const char* name : {"kl_divergence_mean", "kl_divergence_answer", "kl_divergence_max",
                           "nll_difference_mean", "top1_agreement_mean", "generated_agreement",
                           "held_of_budget", "held_share", "budget_share"})
    expect(name, VariableType::float64, cell);
}

int run(const Values& values) {
  const auto files = values["results"].as<std::vector<std::string>>();
  if (files.size() == 1 && files[0] == "-") {
    rank_input();
    return kDone;
  }
  const TableForm form = table_form(values);
  for (const std::string& file : files) {
    const Dataset results = read_results(file);
    for (const char* axis : {"policy", "budget", "budget_label", "step"})
      if (!results.has(axis)) bad_data({"missing variable", file, "", axis});
    if (results.has("layer"))
      check_known_results(results, file);
    else
      check_loop(results, file);
    if (&file != &files.front()) fmt::print("\n");
    if (form != TableForm::text) {
      fmt::print("{}", printable_lines(table_text(paper_table(results, title_of(results)), form)));
      continue;
    }
    fmt::print("{}\n{}", printable(results.attribute_or("trace", file)),
               summary_table(results, {color_enabled(stdout), terminal_width(stdout)}));
  }
  return kDone;
}

const bool registered = register_command(
    {.name = "rank",
     .summary = "the table of a results file: sorted, the best marked, what is not told apart",
     .arguments = {{.name = "results",
                    .meaning = "files of replay, sweep or closed-loop; or -",
                    .many = true}},
     .description =
         "Prints what `replay` and `closed-loop` print when they end. With - it reads series of\n"
         "policies as JSON from standard input and answers with marks, intervals and differences\n"
         "as JSON: what figures, pages and `kvsim compare` are made with.",
     .options = {{"table"}},
     .examples = {"kvsim rank sample.nc --table tex", "kvsim rank - < contests.json"},
     .run = run});

}  // namespace
}  // namespace kvsim::cli::rank_command
