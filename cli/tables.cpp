#include "cli/tables.hpp"

#include <fmt/format.h>

#include <boost/algorithm/string.hpp>
#include <nlohmann/json.hpp>

#include "analysis/ranking.hpp"
#include "cli/command.hpp"
#include "cli/terminal.hpp"
#include "io/side_files.hpp"
#include "run/study/study.hpp"
#include "sim/policy/record.hpp"

namespace kvsim::cli {
namespace {

namespace fs = std::filesystem;

constexpr size_t kNamesShown = 40;
constexpr size_t kNumbersShown = 8;

std::vector<std::string> names_of(const Variable& variable) {
  std::vector<std::string> names;
  for (size_t i = 0; i < variable.count(); ++i) names.push_back(variable.label(i));
  return names;
}

constexpr std::string_view kHdf5 = "\x89HDF\r\n\x1A\n";
constexpr std::pair<std::string_view, const char*> kSignatures[] = {
    {"CDF", "an older netCDF file"}, {"\x89PNG", "a PNG image"},
    {"%PDF", "a PDF document"},      {"PK\x03\x04", "a ZIP archive"},
    {"\x1F\x8B", "gzip data"},       {"GGUF", "a GGUF model"},
    {"<", "an HTML or XML page"},    {"{", "JSON"}};

/// Names in words what a file is that begins with these bytes.
std::string kind_of(std::string_view head) {
  if (head.empty()) return "an empty file";
  for (const auto& [bytes, meaning] : kSignatures)
    if (head.starts_with(bytes)) return meaning;
  const bool text = std::ranges::all_of(
      head, [](unsigned char c) { return c >= ' ' || c == '\n' || c == '\r' || c == '\t'; });
  if (!text) return "other binary data";
  return "text that begins with \"" + std::string(head.substr(0, head.find_first_of("\r\n"))) +
         "\"";
}

/// The first bytes of a regular file that can be read.
std::optional<std::string> head_of(const std::string& path) {
  std::error_code fault;
  if (!fs::is_regular_file(path, fault)) return std::nullopt;
  constexpr size_t kHead = 32;
  std::string head(kHead, '\0');
  std::ifstream file(path, std::ios::binary);
  if (!file.is_open()) return std::nullopt;
  file.read(head.data(), kHead);
  head.resize(file.gcount());
  return head;
}

/// One text for all ways to type a budget (.2, 20%) or a record (`snapkv,window=064`); a text that
/// is neither, as that of a function in Python, stays.
std::string one_text(std::string_view variable, const std::string& typed) {
  try {
    if (variable == "budget_label") return Budget::parse(typed).label;
    if (variable == "policy") return Record::parse(typed).canonical();
  } catch (const Error&) {  // the caller says what is wrong with it
  }
  return typed;
}

/// "one of A; B": what a variable names, a few dozen at most.
std::string choices(const Dataset& results, const char* variable) {
  const std::vector<std::string> known = names_of(results.at(variable));
  if (!std::holds_alternative<std::vector<std::string>>(results.at(variable).values) &&
      known.size() > kNumbersShown)
    return fmt::format("one of {} from {} to {}", known.size(), known.front(), known.back());
  const auto shown = std::span(known).first(std::min(known.size(), kNamesShown));
  return fmt::format("one of {}{}", fmt::join(shown, "; "),
                     shown.size() < known.size() ? "; ..." : "");
}

using Json = nlohmann::ordered_json;

/// Cells of the best record that differ from its preset; all of it where it is named otherwise.
std::string changes(const std::string& record, const std::string& preset) {
  if (record.empty()) return "none holds what the budget gives";
  if (!record.starts_with(preset)) return record;
  return record == preset ? "as it is" : record.substr(preset.size() + 1);
}

/// Of each Fold its name in the CSV and the JSON, and what it says of a measure.
constexpr std::pair<const char*, const char*> kFolds[] = {{"mean", "mean over steps and layers"},
                                                          {"worst", "worst step and layer"},
                                                          {"rms", "root mean square over steps"}};
const char* fold_name(Fold fold) { return kFolds[static_cast<size_t>(fold)].first; }

/// "0.0635 [0.0528, 0.0722]"; `form` of each number.
std::string bounded(double value, const Interval& ends, const std::string& form) {
  if (std::isnan(value)) return "-";
  const std::string all = fmt::format("{{:{0}}} [{{:{0}}}, {{:{0}}}]", form);
  return fmt::format(fmt::runtime(all), value, ends.low, ends.high);
}

/// Says which budgets leave settings out, and what the rest hold where that is something else.
std::string off_budget_text(const std::vector<BestRow>& rows) {
  std::string left, held, nowhere;
  for (const BestRow& row : rows) {
    if (row.criterion.variable != rows.front().criterion.variable ||
        row.criterion.over != rows.front().criterion.over)
      continue;
    const std::string where = printable(row.preset + " at " + row.budget);
    if (row.off_budget > 0)
      left += fmt::format("{}{} of {} settings of {}", left.empty() ? "" : ", ", row.off_budget,
                          row.settings, where);
    if (row.nowhere > 0)
      nowhere += fmt::format("{}{} of {}", nowhere.empty() ? "" : ", ", row.nowhere, where);
    if (!row.record.empty() && unranked_by(row.held) != Unranked::ranked)
      held += fmt::format("{}{} ({:.3g} times)", held.empty() ? "" : ", ", where, row.held);
  }
  std::string text;
  if (!left.empty())
    text += "not ranked, as they hold over a twentieth more or less than the budget gives: " +
            left + "\n";
  if (!nowhere.empty())
    text += "not compared at equal bytes, as all their budgets hold more, or all less: " + nowhere +
            "\n";
  if (!held.empty())
    text += "all settings hold alike, but not what the budget gives: " + held + "\n";
  return text;
}

/// How to read the rows, a line each.
std::string reading(const BestTable& table, const std::vector<BestRow>& rows) {
  std::string text = fmt::format(
      "best settings; 95 % intervals over {}; gain is over the preset as it is;\n"
      "chosen: share of resamples in which this setting is the best, too\n",
      table.traces > 1 ? fmt::format("{} traces", table.traces)
                       : "circular blocks of the steps of one trace");
  if (std::ranges::any_of(rows, [](const BestRow& row) { return std::isnan(row.found.gain); }))
    text += "gain -: the preset as it is is not among the settings of this sweep\n";
  if (!table.stream_layers.empty() && rows.front().criterion.variable == "stream_error")
    text += "stream error: of " + table.stream_layers + "\n";
  if (std::ranges::any_of(rows, [](const BestRow& row) { return !row.equal_bytes_record.empty(); }))
    text +=
        "equal: of settings that are not ranked the best where it holds the bytes that the budget "
        "gives,\nbetween its own budgets; its gain is over the line above\n";
  return text + off_budget_text(rows);
}

Json fields(const BestRow& row) {
  const auto number = [](double value) { return std::isnan(value) ? Json(nullptr) : Json(value); };
  return {{"preset", row.preset},
          {"settings", row.settings},
          {"measure", row.criterion.variable},
          {"over", fold_name(row.criterion.over)},
          {"budget", row.budget},
          {"best", row.record},
          {"value", number(row.found.value)},
          {"low", number(row.found.interval.low)},
          {"high", number(row.found.interval.high)},
          {"default", number(row.found.usual)},
          {"gain", number(row.found.gain)},
          {"gain_low", number(row.found.gain_interval.low)},
          {"gain_high", number(row.found.gain_interval.high)},
          {"chosen", number(row.found.chosen)},
          {"held", number(row.held)},
          {"off_budget", row.off_budget},
          {"equal_bytes", row.equal_bytes_record},
          {"equal_bytes_value", number(row.equal_bytes.value)},
          {"equal_bytes_gain", number(row.equal_bytes.gain)},
          {"equal_bytes_gain_low", number(row.equal_bytes.gain_interval.low)},
          {"equal_bytes_gain_high", number(row.equal_bytes.gain_interval.high)}};
}

std::string csv_cell(const Json& value) {
  if (value.is_null()) return "nan";
  if (value.is_number_float()) return shortest(value.get<double>());
  if (!value.is_string()) return value.dump();
  return value.get<std::string>();
}

constexpr const char* kVariable = "stream_error";
constexpr size_t kStepsOfALine = 3;
constexpr size_t kLongestName = 24;

}  // namespace

Dataset open_netcdf(const std::string& path) {
  if (const std::optional<std::string> head = head_of(path)) {  // all else the reader refuses
    if (!head->starts_with(kHdf5))
      bad_data({"not a results file", path, kind_of(*head), "a netCDF-4 file written by kvsim"});
  }
  return read_results(path);
}

Dataset open_results(const std::string& path, const std::vector<const char*>& variables) {
  Dataset results = open_netcdf(path);
  check_known_results(results, path);
  for (const char* name : variables)
    if (!results.has(name)) bad_data({"missing variable", path, "", name});
  return results;
}

std::string title_of(const Dataset& results) {
  if (!results.has("layer")) return "What the model loses with the compressed caches (closed loop)";
  const std::string form = results.text_attribute(kEqualBytes);
  return "What later tokens lose when the cache is compressed (open-loop replay)" +
         (form.empty() ? "" : "; budgets are shares of the full cache's bytes (" + form + ")");
}

int64_t choice(const Values& values, const Dataset& results, const char* option,
               const char* variable) {
  if (!has(values, option)) return -1;
  const std::vector<std::string> known = names_of(results.at(variable));
  const std::string typed = text(values, option);
  auto found = std::ranges::find(known, typed);
  if (found == known.end())
    found = std::ranges::find(known, one_text(variable, typed),
                              [&](const std::string& name) { return one_text(variable, name); });
  if (found != known.end()) return found - known.begin();
  bad_data({std::string("the results do not have this ") + option, std::string("--") + option,
            typed, choices(results, variable)});
}

std::string trace_beside(const std::string& given, const Dataset& results,
                         const std::string& path) {
  if (!given.empty()) return given;
  const std::string name = results.text_attribute("trace");
  if (name.empty()) return "";
  std::error_code fault;
  const std::string known = results.text_attribute(kTracePath);
  if (fs::is_regular_file(known, fault)) return known;
  for (const fs::path& folder : {fs::path(path).parent_path(), fs::path("."), fs::path("data")})
    if (fs::is_regular_file(folder / name, fault)) return (folder / name).string();
  return "";
}

std::string best_text(const BestTable& table, const std::vector<std::string>& measures,
                      TableForm form) {
  std::vector<BestRow> rows = table.rows;
  std::erase_if(rows, [&](const auto& row) { return !contains(measures, row.criterion.variable); });
  PaperTable paper;
  paper.title = "The best setting of each preset";
  paper.from = table.from;
  for (const char* name : {"preset", "measure", "kept", "best setting"})
    paper.columns.push_back({name, true});
  for (const char* name : {"value", "gain", "chosen"}) paper.columns.push_back({name});
  std::vector<std::string> heads = {""};  // of the text, above each row: of a preset and a measure
  for (const BestRow& row : rows) {
    const std::string measure = boost::replace_all_copy(row.criterion.variable, "_", " ");
    const std::string head = fmt::format("{}, {} settings: {}, {}", row.preset, row.settings,
                                         measure,
                                         kFolds[static_cast<size_t>(row.criterion.over)].second);
    // Stream errors are small, since the stream that they are relative to is large.
    const std::string form_of = row.criterion.variable == "stream_error" ? ".4f" : ".3f";
    const auto add = [&](const std::string& budget, const std::string& record,
                         const BestSetting& found, Mark mark) {
      const bool first = !contains(heads, head);
      heads.push_back(first ? head : "");
      paper.rows.push_back(
          {{first ? row.preset : ""},
           {first ? fmt::format("{} ({})", measure, fold_name(row.criterion.over)) : ""},
           {budget},
           {changes(record, row.preset), record.empty() ? Mark::none : mark},
           {record.empty() ? "" : bounded(found.value, found.interval, form_of)},
           {record.empty() ? "" : bounded(found.gain, found.gain_interval, "+" + form_of)},
           {record.empty() ? "" : fmt::format("{:.0f} %", 100 * found.chosen)}});
    };
    add(row.budget, row.record, row.found, Mark::best);
    if (!row.equal_bytes_record.empty())
      add("equal", row.equal_bytes_record, row.equal_bytes, Mark::none);
  }
  const std::string notes = rows.empty() ? "" : reading(table, rows);
  if (form != TableForm::text) {
    paper.notes = lines_of(notes);
    if (!rows.empty())
      paper.notes.push_back(
          "rms: root mean square over steps; mean: over steps and layers; worst: step and layer");
    return printable_lines(table_text(paper, form));
  }
  size_t width = 12;
  for (const auto& row : paper.rows) width = std::max(width, row[3].text.size());
  const auto line = [&](const auto& budget, const auto& best, const auto& value, const auto& gain,
                        const auto& chosen) {
    return fmt::format("  {:<8}{:<{}}  {:<25}{:<28}{:>6}\n", budget, best, width, value, gain,
                       chosen);
  };
  std::string text = notes;
  for (size_t k = 0; k < paper.rows.size(); ++k) {
    const auto& cells = paper.rows[k];
    if (!heads[k + 1].empty())
      text += "\n" + heads[k + 1] + "\n" + line("budget", "best", "value", "gain", "chosen");
    text += line((cells[2].text == "equal" ? " " : "") + cells[2].text, cells[3].text,
                 cells[4].text, cells[5].text, cells[6].text);
  }
  return printable_lines(text);
}

std::string best_csv(const BestTable& table) {
  std::vector<std::string> names;
  const Json columns = fields(BestRow());
  for (const auto& [name, value] : columns.items()) names.push_back(name);
  std::string text = csv_line(names);
  for (const BestRow& row : table.rows) {
    std::vector<std::string> cells;
    const Json values = fields(row);
    for (const Json& value : values) cells.push_back(csv_cell(value));
    text += csv_line(cells);
  }
  return text;
}

std::string best_json(const BestTable& table) {
  Json rows = Json::array();
  for (const BestRow& row : table.rows) rows.push_back(fields(row));
  return printable_json(Json{{"kvsim", "sweep"}, {"traces", table.traces}, {"rows", rows}}.dump(1) +
                        "\n");
}

std::vector<ExpectedLoss> expected_losses(const Dataset& results, int64_t policy, int64_t budget,
                                          size_t count) {
  std::vector<ExpectedLoss> losses;
  if (!results.has(kVariable)) return losses;
  const auto errors = results.row(kVariable, {policy, budget});
  const auto& steps = results.values<int64_t>("step");
  for (size_t t = 0; t < errors.size(); ++t)
    if (errors[t] > 0) losses.push_back({steps[t], errors[t]});  // false for NaN
  std::ranges::stable_sort(losses, std::greater<>(), &ExpectedLoss::stream_error);
  losses.resize(std::min(losses.size(), count));
  return losses;
}

std::string expected_loss_text(const std::vector<ExpectedLoss>& losses,
                               const std::vector<std::string>& words) {
  std::string text;
  for (const ExpectedLoss& loss : losses) {
    const auto at = static_cast<size_t>(loss.step);
    text += fmt::format("{}{}{} {:.3g}", text.empty() ? "" : ", ", loss.step,
                        at < words.size() ? " " + quoted_token(words[at]) : "", loss.stream_error);
  }
  return text;
}

std::string expected_loss_table(const Dataset& results, const std::vector<std::string>& words) {
  if (!results.has(kVariable)) return "";
  const auto& ratios = results.values<double>("budget");
  const int64_t budget = std::ranges::min_element(ratios) - ratios.begin();
  const auto& policies = results.texts("policy");
  const auto& budgets = results.texts("budget_label");
  std::vector<std::pair<std::string, std::string>> lines;
  size_t width = 0;
  for (int64_t p = 0; p < std::ssize(policies); ++p) {
    const auto losses = expected_losses(results, p, budget, kStepsOfALine);
    if (losses.empty()) continue;
    lines.emplace_back(printable(policies[p]), expected_loss_text(losses, words));
    const size_t length = lines.back().first.size();
    if (length <= kLongestName) width = std::max(width, length);
  }
  if (lines.empty()) return "";
  std::string table = fmt::format("expected to lose most at budget {} (step{}, stream error)\n",
                                  printable(budgets[budget]), words.empty() ? "" : ", its token");
  for (const auto& [name, text] : lines) {
    const std::string end = name.size() > kLongestName ? fmt::format("\n{:{}}", "", width) : "";
    table += fmt::format("{:<{}}{}  {}\n", name, end.empty() ? width : 0, end, text);
  }
  return table;
}

std::string quoted_token(const std::string& token) {
  std::string shown;
  for (const char c : token) shown += c == '\n' ? "\\n" : c == '\t' ? "\\t" : std::string(1, c);
  return '"' + printable(shown) + '"';
}

std::string equal_bytes_table(const Dataset& results) {
  std::string table = fmt::format("{:<44}{:>8}{:>10}{:>11}{:>11}{:>11}{:>11}\n",
                                  "entries for equal bytes, MiB held", "budget", "entries",
                                  "flattened", "padded", "paged", "in place");
  const auto &policies = results.texts("policy"), &budgets = results.texts("budget_label");
  for (int64_t p = 0; p < std::ssize(policies); ++p)
    for (int64_t b = 0; b < std::ssize(budgets); ++b) {
      const auto at = [&](const char* variable) { return results.row(variable, {p, b})[0]; };
      table += fmt::format("  {:<42}{:>8}{:>10g}", printable(policies[p]), printable(budgets[b]),
                           at("budget_entries"));
      for (const char* form : {"bytes_flattened", "bytes_padded", "bytes_paged", "bytes_in_place"})
        table += fmt::format("{:>11.3f}", at(form) / (1 << 20));
      table += "\n";
    }
  return table;
}

}  // namespace kvsim::cli
