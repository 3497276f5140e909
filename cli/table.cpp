#include <fmt/format.h>
#include <fmt/ranges.h>

#include <iostream>
#include <nlohmann/json.hpp>

#include "analysis/dataset.hpp"
#include "analysis/measure.hpp"
#include "analysis/ranking.hpp"
#include "analysis/statistics.hpp"
#include "cli/command.hpp"
#include "cli/tables.hpp"
#include "cli/terminal.hpp"
#include "io/paper_table.hpp"
#include "io/side_files.hpp"
#include "run/study/study.hpp"

namespace kvsim::cli::table_commands {
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
  Json answers = Json::array();
  try {
    const Json contests = Json::parse(std::cin);
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

int run_rank(const Values& values) {
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

const bool rank_registered = register_command(
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
     .run = run_rank});

[[noreturn]] void not_a_table(const std::string& found) {
  bad_data({"not a table", "standard input", found, "JSON as docs/cli.md 2.3 has it"});
}

PaperTable::Cell cell_of(const Json& json) {
  if (json.is_string()) return {json.get<std::string>()};
  const auto found = std::ranges::find(kMarks, json.value("mark", ""));
  if (found == kMarks.end()) not_a_table("mark " + json.at("mark").dump());
  return {json.at("text").get<std::string>(), static_cast<Mark>(found - kMarks.begin())};
}

/// Of the fields `from`, or of the results files that `of` names.
Provenance provenance_of(const Json& json) {
  std::vector<Provenance> parts;
  std::set<std::string> texts;
  for (const Json& file : json.value("of", Json::array())) {
    parts.push_back(provenance(read_results(file.get<std::string>())));
    texts.insert(parts.back().texts.begin(), parts.back().texts.end());
  }
  const Json from = json.value("from", Json::object());
  const auto text = [&](const char* name) { return from.value(name, std::string()); };
  const auto list = [&](const char* name) { return from.value(name, std::vector<std::string>()); };
  if (!parts.empty()) {
    Provenance all = joined(parts, texts.size());
    if (from.contains("kept")) all.kept = list("kept");
    return all;
  }
  Provenance found{.model = text("model"),
                   .revision = text("revision"),
                   .source = text("source"),
                   .dtype = text("dtype"),
                   .texts = list("texts"),
                   .kept = list("kept"),
                   .n = text("n"),
                   .seeds = list("seeds"),
                   .versions = text("versions")};
  const auto ends = [&](const char* name, int64_t(&into)[2]) {
    const auto given = from.value(name, std::vector<int64_t>());
    if (given.size() == 2) std::ranges::copy(given, into);
  };
  ends("prompt", found.prompt);
  ends("later", found.later);
  return found;
}

PaperTable table_of(const Json& json) {
  PaperTable table;
  table.title = json.value("title", "");
  table.from = provenance_of(json);
  for (const Json& one : json.at("columns"))
    table.columns.push_back({one.at("name").get<std::string>(), one.value("left", false)});
  for (const Json& row : json.at("rows")) {
    table.rows.emplace_back();
    for (const Json& cell : row) table.rows.back().push_back(cell_of(cell));
    if (table.rows.back().size() != table.columns.size() || table.columns.empty())
      not_a_table(fmt::format("{} cells in row {}, {} columns", table.rows.back().size(),
                              table.rows.size(), table.columns.size()));
  }
  table.notes = json.value("notes", std::vector<std::string>());
  return table;
}

int run_table(const Values& values) {
  if (text(values, "input") != "-")
    usage_error({"tables are read from standard input", "table", text(values, "input"), "-"});
  const TableForm form = table_form(values);
  try {
    fmt::print("{}", printable_lines(table_text(table_of(Json::parse(std::cin)), form)));
  } catch (const Json::exception& error) {
    not_a_table(error.what());
  }
  return kDone;
}

const bool table_registered = register_command(
    {.name = "table",
     .summary = "a table in JSON as text, Markdown or LaTeX: what compare and study print with",
     .arguments = {{.name = "input", .meaning = "-: standard input"}},
     .description =
         "Reads title, provenance, columns, rows with marks, and notes (docs/cli.md 2.3).",
     .options = {{"table"}},
     .examples = {"kvsim table - --table tex < table.json",
                  "kvsim table - --table md < table.json"},
     .run = run_table});

/// Those of results, and of files of losses, which the package writes; none of these without it.
Json all_variables() {
  Json all = Json::parse(variables_json());
  std::ifstream file(shipped_file("python/kvsim/losses.json"));
  const Json losses = Json::parse(file, nullptr, false);
  if (losses.is_array()) all.insert(all.end(), losses.begin(), losses.end());
  return all;
}

int run_variables(const Values& values) {
  const std::string name = text(values, "name");
  const Json all = all_variables();
  if (has(values, "json")) {
    if (!name.empty()) usage_error({"--json prints all variables", "variables", name});
    fmt::print("{}\n", all.dump(2));
    return kDone;
  }
  std::vector<std::string> names;
  for (const Json& one : all) {
    names.push_back(one.value("name", ""));
    if (!name.empty() && name != names.back()) continue;
    fmt::print("{} [{}], {}\n  {}: {}\n", names.back(),
               fmt::join(one.value("dimensions", std::vector<std::string>()), ", "),
               one.value("units", ""), one.value("long_name", ""), one.value("definition", ""));
  }
  if (!name.empty() && !contains(names, name))
    usage_error({.what = "unknown variable",
                 .where = "variables",
                 .found = name,
                 .hint = did_you_mean(name, names)});
  return kDone;
}

const bool variables_registered = register_command(
    {.name = "variables",
     .summary = "what results files hold: dimensions, units and formulas",
     .arguments = {{.name = "name", .meaning = "one of them", .required = false}},
     .options = {{"json"}},
     .examples = {"kvsim variables stream_error", "kvsim variables --json"},
     .run = run_variables});

}  // namespace
}  // namespace kvsim::cli::table_commands
