#include "io/paper_table.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>

#include "sim/core/decimal.hpp"

namespace kvsim {
namespace {

/// Share that a budget takes away: of a share the rest, of a count all but it.
std::string removed(const std::string& kept) {
  const auto number = Decimal::parse(kept);
  const bool count = number && kept.find_first_not_of("0123456789") == std::string::npos;
  if (!number || count) return "all but " + kept;
  return number->one_minus().text();
}

std::string range(const int64_t (&ends)[2]) {
  return ends[0] == ends[1] ? std::to_string(ends[0]) : fmt::format("{} to {}", ends[0], ends[1]);
}

/// The first names, and how many there are more.
std::string some_of(const std::vector<std::string>& names) {
  constexpr size_t kNamed = 16;
  const size_t shown = std::min(names.size(), kNamed);
  std::string text = fmt::format(
      "{}", fmt::join(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(shown), ", "));
  return names.size() > shown ? fmt::format("{} and {} more", text, names.size() - shown) : text;
}

std::string caption(const PaperTable& table) {
  const Provenance& from = table.from;
  std::string text = table.title.empty() ? "" : table.title + ".";
  const auto say = [&](const std::string& what, const std::string& value) {
    if (!value.empty()) text += fmt::format("{}{}: {}.", text.empty() ? "" : " ", what, value);
  };
  say("Model", from.model + (from.revision.empty() ? "" : ", revision " + from.revision));
  const bool elsewhere = !from.source.empty() && from.source != from.model;
  say("Weights", elsewhere && !from.dtype.empty() ? from.source + ", computed in " + from.dtype
                 : elsewhere                      ? from.source
                                                  : from.dtype);
  say("Texts", some_of(from.texts));
  if (from.prompt[1] > 0)
    say("Tokens",
        fmt::format("{} of the prompt, {} later ones", range(from.prompt), range(from.later)));
  std::vector<std::string> rest;
  std::ranges::transform(from.kept, std::back_inserter(rest), removed);
  say("Kept", fmt::format("{}", fmt::join(from.kept, ", ")));
  say("Removed", fmt::format("{}", fmt::join(rest, ", ")));
  say("n", from.n);
  say("Seeds", fmt::format("{}", fmt::join(from.seeds, ", ")));
  say("Versions", from.versions);
  return text;
}

/// Replaces every sign that `signs` has another text for. Control characters become spaces.
std::string escaped(const std::string& text, const std::map<std::string, std::string>& signs) {
  std::string out;
  for (size_t i = 0; i < text.size();) {
    const auto found = std::ranges::find_if(
        signs, [&](const auto& one) { return text.compare(i, one.first.size(), one.first) == 0; });
    if (found != signs.end()) {
      out += found->second;
      i += found->first.size();
    } else {
      const auto code = static_cast<unsigned char>(text[i++]);
      out += code < 0x20 || code == 0x7f ? ' ' : static_cast<char>(code);
    }
  }
  return out;
}

std::string latex(const std::string& text) {
  static const std::map<std::string, std::string> signs = {{"\\", "\\textbackslash{}"},
                                                           {"~", "\\textasciitilde{}"},
                                                           {"^", "\\textasciicircum{}"},
                                                           {"&", "\\&"},
                                                           {"%", "\\%"},
                                                           {"$", "\\$"},
                                                           {"#", "\\#"},
                                                           {"_", "\\_"},
                                                           {"{", "\\{"},
                                                           {"}", "\\}"},
                                                           {"<", "$<$"},
                                                           {">", "$>$"},
                                                           {"|", "$|$"},
                                                           {"\"", "''"},
                                                           {"`", "\\textasciigrave{}"},
                                                           {"--", "-{}-"},
                                                           {"†", "\\dag{}"},
                                                           {"–", "--"},
                                                           {"—", "---"},
                                                           {"×", "$\\times$"},
                                                           {"±", "$\\pm$"},
                                                           {"…", "\\ldots{}"},
                                                           {"−", "$-$"}};
  return escaped(text, signs);
}

std::string markdown(const std::string& text) {
  static const std::map<std::string, std::string> signs = {
      {"\\", "\\\\"}, {"|", "\\|"},  {"*", "\\*"},   {"_", "\\_"}, {"`", "\\`"},
      {"<", "&lt;"},  {">", "&gt;"}, {"&", "&amp;"}, {"[", "\\["}, {"]", "\\]"},
      {"~", "\\~"},   {"$", "\\$"},  {"#", "\\#"}};
  return escaped(text, signs);
}

/// Texts around a marked cell, by Mark.
using Around = std::pair<const char*, const char*>[5];
constexpr Around kMarkdown = {{"", ""}, {"**", "**"}, {"", "†"}, {"", "&gt;"}, {"", "&lt;"}};
constexpr Around kLatex = {{"", ""},
                           {"\\textbf{", "}"},
                           {"", "\\rlap{\\textsuperscript{\\dag}}"},
                           {"", "\\rlap{$^{>}$}"},
                           {"", "\\rlap{$^{<}$}"}};

std::string between(const Around& marks, Mark mark, const std::string& text) {
  const auto& [before, behind] = marks[static_cast<size_t>(mark)];
  return before + text + behind;
}

std::string markdown_cell(const PaperTable::Cell& cell) {
  return between(kMarkdown, cell.mark, markdown(cell.text));
}

std::string latex_cell(const PaperTable::Cell& cell) {
  return between(kLatex, cell.mark, latex(cell.text));
}

/// A heading over as many lines as it has words, where it is longer than the numbers below it.
std::string latex_head(const PaperTable::Column& column) {
  std::string text = latex(column.name);
  if (column.left || column.name.size() < 9 || column.name.find(' ') == std::string::npos)
    return text;
  for (size_t at = text.find(' '); at != std::string::npos; at = text.find(' ', at))
    text.replace(at, 1, "\\\\");
  return "\\shortstack[r]{" + text + "}";
}

template <class Each, class Shown>
std::vector<std::string> each(const std::vector<Each>& of, const Shown& shown) {
  std::vector<std::string> texts;
  std::ranges::transform(of, std::back_inserter(texts), shown);
  return texts;
}

/// Of UTF-8: bytes that continue none.
size_t characters(const std::string& text) {
  return static_cast<size_t>(
      std::ranges::count_if(text, [](char byte) { return (byte & 0xC0) != 0x80; }));
}

/// Characters side by side: of each column the widest cell, and a gap.
size_t across(const PaperTable& table) {
  size_t all = 0;
  for (size_t c = 0; c < table.columns.size(); ++c) {
    size_t widest = 0;
    for (const auto& row : table.rows) widest = std::max(widest, characters(row[c].text));
    all += widest + 2;
  }
  return all;
}

std::string as_latex(const PaperTable& table) {
  // A table wider than a column of two takes the page, where a page has two; what is wider than a
  // page in \footnotesize is smaller.
  constexpr size_t kColumn = 50, kPage = 105;
  const std::string kind = across(table) > kColumn ? "table*" : "table";
  std::string text = fmt::format(
      "% \\usepackage{{booktabs}}\n\\begin{{{}}}\n\\centering\\{}\n\\caption{{{}}}\n"
      "\\setlength{{\\tabcolsep}}{{4pt}}\n\\begin{{tabular}}{{{}}}\n\\toprule\n{} "
      "\\\\\n\\midrule\n",
      kind, across(table) > kPage ? "scriptsize" : "footnotesize", latex(caption(table)),
      fmt::join(each(table.columns, [](const PaperTable::Column& c) { return c.left ? "l" : "r"; }),
                ""),
      fmt::join(each(table.columns, latex_head), " & "));
  const bool blocks = std::ranges::any_of(  // of several rows
      table.rows, [](const auto& row) { return row.front().text.empty(); });
  for (const auto& row : table.rows) {
    if (blocks && &row != &table.rows.front() && !row.front().text.empty())
      text += "\\addlinespace\n";
    text += fmt::format("{} \\\\\n", fmt::join(each(row, latex_cell), " & "));
  }
  text += "\\bottomrule\n\\end{tabular}\n";
  if (!table.notes.empty())
    text += fmt::format(
        "\\par\\smallskip\n\\begin{{minipage}}{{\\linewidth}}\n{}\n\\end{{minipage}}\n",
        fmt::join(each(table.notes, latex), "\\\\\n"));
  return text + fmt::format("\\end{{{}}}\n", kind);
}

std::string as_markdown(const PaperTable& table) {
  const auto line = [](const std::vector<std::string>& cells) {
    return fmt::format("| {} |\n", fmt::join(cells, " | "));
  };
  std::string text = markdown(caption(table));
  if (!text.empty()) text = "**Table.** " + text + "\n\n";
  text += line(each(table.columns, [](const PaperTable::Column& c) { return markdown(c.name); }));
  text += line(
      each(table.columns, [](const PaperTable::Column& c) { return c.left ? "---" : "--:"; }));
  for (const auto& row : table.rows) text += line(each(row, markdown_cell));
  for (const std::string& note : table.notes) text += "\n" + markdown(note) + "\n";
  return text;
}

std::string as_text(const PaperTable& table) {
  const size_t count = table.columns.size();
  std::vector<bool> marked(count);
  for (const auto& row : table.rows)
    for (size_t c = 0; c < count; ++c) marked[c] = marked[c] || row[c].mark != Mark::none;
  std::vector<std::vector<std::string>> lines(1);
  for (size_t c = 0; c < count; ++c)
    lines[0].push_back(table.columns[c].name + (marked[c] ? " " : ""));
  for (const auto& row : table.rows) {
    lines.emplace_back();
    for (size_t c = 0; c < count; ++c)
      lines.back().push_back(
          row[c].text +
          (marked[c] ? std::string(1, " *~><"[static_cast<size_t>(row[c].mark)]) : ""));
  }
  std::string text = table.title.empty() ? "" : table.title + "\n";
  for (const auto& cells : lines) {
    std::string line;
    for (size_t c = 0; c < count; ++c) {
      size_t width = 0;
      for (const auto& other : lines) width = std::max(width, characters(other[c]));
      const std::string room(width - characters(cells[c]), ' ');
      line += (c > 0 ? "  " : "") + (table.columns[c].left ? cells[c] + room : room + cells[c]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  for (const std::string& note : table.notes) text += note + "\n";
  return text;
}

/// "kvsim 1.0, torch 2.9": the program's version and those of the libraries that a model ran with.
std::string versions_of(const Dataset& results) {
  std::string text = "kvsim " + results.text_attribute("kvsim_version");
  const auto libraries = nlohmann::ordered_json::parse(results.text_attribute("libraries"), nullptr,
                                                       false);
  if (libraries.is_object())
    for (const auto& [name, version] : libraries.items())
      if (version.is_string()) text += fmt::format(", {} {}", name, version.get<std::string>());
  return text;
}

}  // namespace

std::string table_text(const PaperTable& table, TableForm form) {
  switch (form) {
    case TableForm::markdown: return as_markdown(table);
    case TableForm::latex: return as_latex(table);
    case TableForm::text: break;
  }
  return as_text(table);
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream left(text);
  for (std::string line; std::getline(left, line);) lines.push_back(line);
  return lines;
}

Provenance provenance(const Dataset& results) {
  const int64_t prompt = results.attribute_or<int64_t>("prompt_len", 0);
  const int64_t later = results.attribute_or<int64_t>("total_len", 0) - prompt;
  Provenance from{.model = results.text_attribute("model"),
                  .revision = results.text_attribute("model_revision"),
                  .source = results.text_attribute("model_source"),
                  .dtype = results.text_attribute("model_dtype"),
                  .texts = {results.text_attribute("trace")},
                  .prompt = {prompt, prompt},
                  .later = {later, later},
                  .kept = results.texts("budget_label"),
                  .n = fmt::format("{} later tokens of one text", results.size("step")),
                  .seeds = {},
                  .versions = versions_of(results)};
  if (results.attribute("seed") != nullptr)
    from.seeds = {std::to_string(results.attribute_or<int64_t>("seed", 0))};
  if (const std::string probe = results.text_attribute("later"); !probe.empty())
    from.texts[0] += " (later tokens of the probe " + probe + ")";
  return from;
}

Provenance joined(const std::vector<Provenance>& parts, size_t count) {
  if (parts.empty()) return {};
  Provenance all = parts[0];
  const auto add = [](std::vector<std::string>& to, const std::vector<std::string>& names) {
    for (const std::string& one : names)
      if (!one.empty() && !contains(to, one)) to.push_back(one);
  };
  for (const auto part : {&Provenance::model, &Provenance::revision, &Provenance::source,
                          &Provenance::dtype, &Provenance::versions}) {
    std::vector<std::string> own;
    for (const Provenance& one : parts) add(own, {one.*part});
    all.*part = fmt::format("{}", fmt::join(own, "; "));
  }
  for (const Provenance& one : parts) {
    for (const auto part : {&Provenance::texts, &Provenance::kept, &Provenance::seeds})
      add(all.*part, one.*part);
    for (const auto part : {&Provenance::prompt, &Provenance::later}) {
      (all.*part)[0] = std::min((all.*part)[0], (one.*part)[0]);
      (all.*part)[1] = std::max((all.*part)[1], (one.*part)[1]);
    }
  }
  if (count > 1) all.n = fmt::format("{} texts", count);
  return all;
}

}  // namespace kvsim
