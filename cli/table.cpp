#include <fmt/format.h>
#include <fmt/ranges.h>

#include <iostream>
#include <nlohmann/json.hpp>

#include "analysis/dataset.hpp"
#include "analysis/measure.hpp"
#include "cli/command.hpp"
#include "cli/tables.hpp"
#include "cli/terminal.hpp"
#include "io/paper_table.hpp"
#include "io/side_files.hpp"

namespace kvsim::cli::table_command {
namespace {

using Json = nlohmann::ordered_json;

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

int run(const Values& values) {
  if (text(values, "input") != "-")
    usage_error({"tables are read from standard input", "table", text(values, "input"), "-"});
  const TableForm form = table_form(values);
  const std::string input{std::istreambuf_iterator<char>(std::cin), {}};
  try {
    fmt::print("{}", printable_lines(table_text(table_of(Json::parse(input)), form)));
  } catch (const Json::exception& error) {
    not_a_table(error.what());
  }
  return kDone;
}

const bool registered = register_command(
    {.name = "table",
     .summary = "a table in JSON as text, Markdown or LaTeX: what compare and study print with",
     .arguments = {{.name = "input", .meaning = "-: standard input"}},
     .description =
         "Reads title, provenance, columns, rows with marks, and notes (docs/cli.md 2.3).",
     .options = {{"table"}},
     .examples = {"kvsim table - --table tex < table.json",
                  "kvsim table - --table md < table.json"},
     .run = run});

}  // namespace
}  // namespace kvsim::cli::table_command

namespace kvsim::cli::variables_command {
namespace {

using Json = nlohmann::ordered_json;

/// Those of results, and of files of losses, which the package writes; none of these without it.
Json all_variables() {
  Json all = Json::parse(variables_json());
  std::ifstream file(shipped_file("python/kvsim/losses.json"));
  const Json losses = Json::parse(file, nullptr, false);
  if (losses.is_array()) all.insert(all.end(), losses.begin(), losses.end());
  return all;
}

int run(const Values& values) {
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

const bool registered = register_command(
    {.name = "variables",
     .summary = "what results files hold: dimensions, units and formulas",
     .arguments = {{.name = "name", .meaning = "one of them", .required = false}},
     .options = {{"json"}},
     .examples = {"kvsim variables stream_error", "kvsim variables --json"},
     .run = run});

}  // namespace
}  // namespace kvsim::cli::variables_command
