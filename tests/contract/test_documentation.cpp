// The specification in docs/ is complete: whatever a comment cites exists, and every preset, kind,
// parameter, variable, command and option is documented where a reader looks for it.
#include <fmt/format.h>

#include <algorithm>
#include <boost/program_options.hpp>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>

#include "analysis/dataset.hpp"
#include "analysis/measure.hpp"
#include "cli/command.hpp"
#include "sim/policy/presets.hpp"
#include "sim/stages/kind.hpp"
#include "tests/contract/tree.hpp"

namespace kvsim {
namespace {

namespace fs = std::filesystem;

const std::set<std::string> kSources = {".cpp", ".hpp", ".inc", ".cu",
                                        ".cuh", ".py",  ".sh",  ".cmake"};

std::string text_of(const fs::path& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::string page(const std::string& name) { return text_of(kRoot / "docs" / name); }

std::vector<fs::path> source_files() {
  std::vector<fs::path> files;
  for (const char* folder : {"sim", "analysis", "io", "run", "cli", "tests", "bench", "plots",
                             "data", "python", "scripts", "cmake", "studies"})
    for (fs::path& file : files_below(kRoot / folder, kSources)) files.push_back(std::move(file));
  return files;
}

std::vector<fs::path> pages() {
  std::vector<fs::path> all = files_below(kRoot / "docs", {".md"});
  for (fs::path& finding : files_below(kRoot / "studies", {".md"}))
    all.push_back(std::move(finding));
  for (const char* name : {"README.md", "CONTRIBUTING.md", "CHANGELOG.md"})
    all.push_back(kRoot / name);
  return all;
}

/// Text of every numbered section, subsections included: "5" and "5.4" of "## 5. ..." and
/// "### 5.4 ...".
std::map<std::string, std::string> sections_of(const std::string& text) {
  static const std::regex heading(R"(^##+ (\d+(?:\.\d+)?)\.? )");
  std::map<std::string, std::string> sections;
  std::string chapter, section;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::smatch found;
    if (std::regex_search(line, found, heading)) {
      section = found[1];
      chapter = section.substr(0, section.find('.'));
    } else if (line.starts_with("## ")) {
      chapter = section = "";
    }
    if (chapter.empty()) continue;
    sections[chapter] += line + "\n";
    if (section != chapter) sections[section] += line + "\n";
  }
  return sections;
}

/// What a source says around each ".md": the name of the page and what follows, lines joined, since
/// a citation may run over the end of a comment's line.
std::vector<std::string> mentions_of_pages(const fs::path& file) {
  constexpr size_t kBefore = 60, kAfter = 80;
  const std::string text = text_of(file);
  std::vector<std::string> mentions;
  for (size_t at = text.find(".md"); at != std::string::npos; at = text.find(".md", at + 1)) {
    size_t begin = at;
    while (begin > 0 && at - begin < kBefore &&
           (std::isalnum(static_cast<unsigned char>(text[begin - 1])) != 0 ||
            std::string_view("./-_").find(text[begin - 1]) != std::string_view::npos))
      --begin;
    std::string mention;
    for (const char c : text.substr(begin, at - begin + kAfter)) {
      const bool joins = c == '\n' || (!mention.empty() && mention.back() == '\n' &&
                                       std::string_view(" \t/#").find(c) != std::string_view::npos);
      if (c == '\n' || !joins) mention += c;
    }
    std::ranges::replace(mention, '\n', ' ');
    mentions.push_back(std::move(mention));
  }
  return mentions;
}

/// Anchor that a heading has on a page: lower case, blanks as -, no punctuation but - and _.
std::string anchor_of(std::string_view heading) {
  std::string anchor;
  for (const char c : heading) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == ' ')
      anchor += '-';
    else if (byte >= 0x80 || std::isalnum(byte) || c == '-' || c == '_')
      anchor += static_cast<char>(std::tolower(byte));
  }
  return anchor;
}

std::set<std::string> anchors_of(const fs::path& path) {
  std::set<std::string> anchors;
  std::istringstream lines(text_of(path));
  for (std::string line; std::getline(lines, line);) {
    const size_t text = line.find_first_not_of('#');
    if (text == 0 || text == std::string::npos || line[text] != ' ') continue;
    anchors.insert(anchor_of(std::string_view(line).substr(text + 1)));
  }
  return anchors;
}

/// The tests hold the example of CONTRIBUTING.md, too.
bool is_example(const std::string& name) { return name.starts_with("example"); }

/// Every key with its default, by the section that explains it.
std::string keys_table() {
  std::vector<std::pair<std::string, std::string>> rows;
  for (const Parameter* p : parameters()) {
    if (is_example(p->key)) continue;
    const std::string section = p->section();
    auto row = std::ranges::find(rows, section, &decltype(rows)::value_type::first);
    if (row == rows.end()) row = rows.insert(rows.end(), {section, ""});
    row->second += fmt::format("{}`{}={}`", row->second.empty() ? "" : ", ", p->key, p->fallback);
  }
  std::string table = "| section | keys and their defaults |\n|---|---|\n";
  for (const auto& [section, keys] : rows) table += fmt::format("| {} | {} |\n", section, keys);
  return table;
}

/// The lines between <!-- NAME:begin --> and <!-- NAME:end --> of policies.md; with
/// KVSIM_UPDATE_DOCS set they are written anew first.
std::string generated_part(const std::string& name, const std::string& wanted) {
  const std::string begin = "<!-- " + name + ":begin -->\n", end = "<!-- " + name + ":end -->";
  std::string text = page("policies.md");
  const size_t from = text.find(begin), to = text.find(end);
  REQUIRE(from != std::string::npos);
  REQUIRE(to != std::string::npos);
  if (std::getenv("KVSIM_UPDATE_DOCS") != nullptr) {
    text.replace(from + begin.size(), to - from - begin.size(), wanted);
    std::ofstream(kRoot / "docs" / "policies.md") << text;
    return wanted;
  }
  return text.substr(from + begin.size(), to - from - begin.size());
}

}  // namespace

TEST_CASE("every section of a page that a comment cites exists", "[docs]") {
  static const std::regex citation(
      R"(^([\w./-]*[\w-]+\.md)((?: \d+(?:\.\d+)?)(?:(?:, | and | to )\d+(?:\.\d+)?)*)?)");
  static const std::regex number(R"(\d+(?:\.\d+)?)");
  std::map<std::string, std::map<std::string, std::string>> known;
  int seen = 0;
  for (const fs::path& file : source_files()) {
    for (const std::string& mention : mentions_of_pages(file)) {
      std::smatch found;
      if (!std::regex_search(mention, found, citation)) continue;  // ".md" alone
      const std::string name = found[1], cited = found[2];
      INFO(fs::relative(file, kRoot).generic_string() << " cites " << name << cited);
      const fs::path path = name.find('/') == std::string::npos && fs::exists(kRoot / "docs" / name)
                                ? kRoot / "docs" / name
                                : kRoot / fs::path(name).relative_path();
      CHECK(fs::exists(path));
      if (!fs::exists(path)) continue;
      if (!known.contains(name)) known[name] = sections_of(text_of(path));
      for (std::sregex_iterator n(cited.begin(), cited.end(), number), none; n != none; ++n) {
        ++seen;
        INFO("section " << n->str());
        CHECK(known[name].contains(n->str()));
      }
    }
  }
  CHECK(seen > 90);  // the scan sees citations at all
}

TEST_CASE("links and files that the pages name exist", "[docs]") {
  static const std::regex link(R"(\]\(([^)\s#]*)(?:#([^)\s]*))?\))");
  static const std::regex named(
      R"(`((?:sim|analysis|io|run|cli|plots|data|scripts|tests|bench|cmake|docs|studies)/)"
      R"([\w./-]+\.\w+)`)");
  int links = 0, files = 0;
  for (const fs::path& path : pages()) {
    const std::string text = text_of(path);
    INFO(fs::relative(path, kRoot).generic_string());
    for (std::sregex_iterator at(text.begin(), text.end(), link), none; at != none; ++at) {
      const std::string target = (*at)[1], anchor = (*at)[2];
      if (target.starts_with("http")) continue;
      ++links;
      const fs::path to = target.empty() ? path : path.parent_path() / target;
      INFO("link to " << target << "#" << anchor);
      CHECK(fs::exists(to));
      if (!anchor.empty() && fs::exists(to)) CHECK(anchors_of(to).contains(anchor));
    }
    for (std::sregex_iterator at(text.begin(), text.end(), named), none; at != none; ++at) {
      ++files;
      INFO("file " << (*at)[1]);
      CHECK(fs::exists(kRoot / (*at)[1].str()));
    }
  }
  CHECK(links > 40);
  CHECK(files > 40);
}

TEST_CASE("code that a page quotes stands in the file that it names", "[docs]") {
  static const std::regex quoted("<!-- from: (\\S+) -->\n```(?:cpp|toml)\n([^`]*)```");
  size_t seen = 0;
  for (const fs::path& page : pages()) {
    const std::string text = text_of(page);
    for (std::sregex_iterator at(text.begin(), text.end(), quoted), end; at != end; ++at, ++seen) {
      INFO(page << " quotes " << (*at)[1]);
      CHECK(text_of(kRoot / (*at)[1].str()).find((*at)[2].str()) != std::string::npos);
    }
  }
  CHECK(seen > 0);
}

TEST_CASE("policies.md has every key with its default", "[docs]") {
  INFO("KVSIM_UPDATE_DOCS=1 kvsim_tests \"[docs]\" writes the table anew");
  CHECK((generated_part("keys", keys_table()) == keys_table()));
}

TEST_CASE("every note is about a kind, a key or a preset that there is", "[docs]") {
  std::set<std::string> known;
  for (const KindInfo* kind : all_kinds()) known.insert(kind->stage + "=" + kind->name);
  for (const Parameter* p : parameters()) known.insert(p->key);
  for (const Preset& preset : presets()) known.insert(preset_title(preset));
  CHECK(all_notes().size() > 30);
  for (const Note* note : all_notes()) {
    INFO(note->of << ": " << note->point);
    CHECK(known.contains(note->of));
    CHECK_FALSE(note->source.empty());
    CHECK_FALSE(note->reading.empty());
  }
}

TEST_CASE("policies.md explains every key in its section", "[docs]") {
  const auto sections = sections_of(page("policies.md"));
  for (const Parameter* p : parameters()) {
    if (is_example(p->key)) continue;
    INFO(p->key << " in section " << p->section());
    REQUIRE(sections.contains(p->section()));
    const std::string& text = sections.at(p->section());
    CHECK((text.find("`" + p->key + "`") != std::string::npos ||
           text.find("`" + p->key + "=") != std::string::npos));
  }
}

TEST_CASE("policies.md has a row with its source for every kind of a stage", "[docs]") {
  const auto sections = sections_of(page("policies.md"));
  for (const KindInfo* kind : all_kinds()) {
    if (is_example(kind->name)) continue;
    const std::string where = find_parameter(kind->stage)->section();
    INFO("docs/policies.md, section " << where << ": a row of " << kind->stage << "="
                                      << kind->name);
    REQUIRE(sections.contains(where));
    std::istringstream lines(sections.at(where));
    bool row = false, with_source = false;
    for (std::string line; std::getline(lines, line);) {
      if (!line.starts_with("| `" + kind->name + "` |")) continue;
      row = true;
      with_source = with_source || line.find(kind->source) != std::string::npos;
    }
    CHECK(row);
    INFO("source " << kind->source);
    CHECK(with_source);
  }
}

TEST_CASE("metrics.md defines every variable of a results file", "[docs]") {
  const std::string text = page("metrics.md");
  for (const VariableDeclaration& variable : declared_variables()) {
    if (is_example(variable.name)) continue;
    INFO("docs/metrics.md: a definition of " << variable.name);
    CHECK((text.find(fmt::format("`{}`", variable.name)) != std::string::npos));
  }
}

TEST_CASE("cli.md has every command and every option", "[docs]") {
  const std::string text = page("cli.md");
  for (const cli::Command& command : cli::commands()) {
    INFO(command.name);
    const std::string name = "| `" + command.name;
    const bool row = text.find(name + " ") != std::string::npos ||
                     text.find(name + "`") != std::string::npos;
    CHECK(row);
    boost::program_options::options_description options;
    cli::add_options(options, command.options);
    for (const auto& option : options.options()) {
      INFO("--" << option->long_name());
      const std::regex word("--" + option->long_name() + R"((?![\w-]))");
      CHECK(std::regex_search(text, word));
    }
  }
  for (const auto& [name, summary] : cli::package_commands()) {
    INFO(name);
    CHECK((summary.empty() || text.find("| `" + name + " ") != std::string::npos));
  }
}

}  // namespace kvsim
