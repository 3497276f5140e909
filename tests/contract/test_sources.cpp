// The house keeps its shape: who may include whom, and how long a file may be.
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "sim/policy/presets.hpp"
#include "sim/stages/kind.hpp"
#include "tests/contract/tree.hpp"

namespace kvsim {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> lines_of(const fs::path& file) {
  std::ifstream in(file);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

/// The same, relative to the root.
std::vector<fs::path> sources_below(const std::string& folder,
                                    const std::set<std::string>& endings) {
  std::vector<fs::path> files;
  for (const fs::path& file : files_below(kRoot / folder, endings))
    files.push_back(fs::relative(file, kRoot));
  return files;
}

/// The table of the architecture: what each folder may include beside itself.
const std::map<std::string, std::set<std::string>> kMayInclude = {
    {"sim/core", {}},
    {"sim/backend", {"sim/core"}},
    {"sim/stages", {"sim/core", "sim/backend"}},
    {"sim/policy", {"sim/core", "sim/backend", "sim/stages"}},
    {"sim/replay", {"sim/core", "sim/backend", "sim/stages", "sim/policy"}},
    {"analysis", {"sim/core", "sim/backend", "sim/stages", "sim/policy", "sim/replay"}},
    {"io", {"sim/core", "analysis"}},
    {"run",
     {"sim/core", "sim/backend", "sim/stages", "sim/policy", "sim/replay", "analysis", "io"}},
    {"cli",
     {"sim/core", "sim/backend", "sim/stages", "sim/policy", "sim/replay", "analysis", "io",
      "run"}},
};

/// Folder of the table that a path is in; empty for any other.
std::string folder_of(const std::string& path) {
  for (const auto& [folder, allowed] : kMayInclude)
    if (path.starts_with(folder + "/")) return folder;
  return "";
}

/// A backend's own files may be included by that backend only; others see the interface.
bool inside_a_backend(const std::string& path) {
  return path.starts_with("sim/backend/cpu/") || path.starts_with("sim/backend/cuda/");
}

const std::regex kOurs(R"(^\s*#\s*include\s*\"([^\"]+)\")");
const std::regex kTheirs(R"(^\s*#\s*include\s*<([^>]+)>)");

TEST_CASE("folders include only what the architecture allows them", "[sources]") {
  int seen = 0;
  for (const auto& [folder, allowed] : kMayInclude)
    for (const fs::path& file : sources_below(folder, {".cpp", ".hpp", ".inc", ".cu", ".cuh"}))
      for (const std::string& line : lines_of(kRoot / file)) {
        std::smatch found;
        if (!std::regex_search(line, found, kOurs)) continue;
        const std::string target = found[1];
        const std::string to = folder_of(target);
        if (to.empty()) continue;
        ++seen;
        INFO(file.generic_string() << " includes " << target);
        CHECK((to == folder || allowed.contains(to)));
        if (inside_a_backend(target)) CHECK(folder == "sim/backend");
      }
  CHECK(seen > 100);  // the scan sees includes at all
}

/// Who includes whom.
using Includes = std::map<std::string, std::set<std::string>>;

/// The rooms that one includes, directly or not.
std::set<std::string> reached(const Includes& includes, const std::string& from) {
  std::set<std::string> seen;
  std::vector<std::string> next(1, from);
  while (!next.empty()) {
    const std::string at = next.back();
    next.pop_back();
    for (const std::string& to : includes.at(at))
      if (seen.insert(to).second) next.push_back(to);
  }
  return seen;
}

/// Includes between rooms; `room_of` names the room of a path, "" for what is in none.
Includes includes_below(const std::string& folder,
                        const std::function<std::string(const std::string& path)>& room_of) {
  Includes includes;
  for (const fs::path& file : sources_below(folder, {".cpp", ".hpp", ".inc", ".cu", ".cuh"})) {
    const std::string from = room_of(file.generic_string());
    if (from.empty()) continue;
    includes[from];
    for (const std::string& line : lines_of(kRoot / file)) {
      std::smatch found;
      if (!std::regex_search(line, found, kOurs) || !fs::exists(kRoot / found[1].str())) continue;
      const std::string to = room_of(found[1]);
      if (!to.empty() && to != from) includes[from].insert(to), includes[to];
    }
  }
  return includes;
}

void check_no_circles(const Includes& includes) {
  for (const auto& [room, others] : includes) {
    CAPTURE(room, others);
    CHECK_FALSE(reached(includes, room).contains(room));
  }
}

/// Files that lie beside the subfolders may see all of them.
TEST_CASE("subfolders do not include each other in circles", "[sources]") {
  const auto below = [](const std::string& parent) {
    return includes_below(parent, [parent](const std::string& path) {
      const std::string rest = path.starts_with(parent) ? path.substr(parent.size() + 1) : "";
      return rest.substr(0, rest.find('/') == std::string::npos ? 0 : rest.find('/'));
    });
  };
  const Includes stages = below("sim/stages"), run = below("run");
  CHECK(stages.size() > 12);
  CHECK(reached(stages, "protect").contains("merge"));  // the scan sees includes at all
  CHECK(reached(run, "sweep").contains("study"));
  check_no_circles(stages);
  check_no_circles(run);
}

TEST_CASE("files do not include each other in circles", "[sources]") {
  // A source and its headers are one room.
  const auto room_of = [](const std::string& path) { return path.substr(0, path.rfind('.')); };
  for (const char* folder : {"sim", "analysis", "io", "run", "cli", "bench"})
    check_no_circles(includes_below(folder, room_of));
}

/// Builds that compile file by file may then read these headers once, and still find what is
/// missing.
TEST_CASE("a file includes those headers that are precompiled whose names it uses", "[sources]") {
  const std::map<std::string, std::regex> named = {
      {"sim/core/prelude.hpp", std::regex(R"(\bstd::|\bu?int\d+_t\b)")},
      {"fmt/format.h", std::regex(R"(\bfmt::)")},
      {"random", std::regex(R"(\bstd::(mt19937|\w+_distribution))")},
      {"catch2/catch.hpp", std::regex(R"(\b(TEST_CASE|CHECK|REQUIRE|Approx)\b)")}};
  Includes includes;
  std::map<std::string, std::string> texts;
  for (const char* folder : {"sim", "analysis", "io", "run", "cli", "tests"})
    for (const fs::path& file : sources_below(folder, {".cpp", ".hpp"})) {
      const std::string from = file.generic_string();
      std::set<std::string>& own = includes[from];
      for (const std::string& line : lines_of(kRoot / file)) {
        std::smatch found;
        texts[from] += line.substr(0, line.find("//")) + "\n";
        if (std::regex_search(line, found, kOurs) || std::regex_search(line, found, kTheirs))
          own.insert(found[1]);
      }
    }
  for (const auto& [from, others] : Includes(includes))
    for (const std::string& to : others) includes[to];
  for (const auto& [file, text] : texts) {
    const std::set<std::string> without = {"sim/core", "sim/backend/cuda"};
    if (without.contains(file.substr(0, file.rfind('/'))) ||
        file.starts_with("sim/backend/cpu/kernels") || file == "tests/fuzz/coverage.cpp" ||
        file == "tests/fuzz/libfuzzer.cpp")
      continue;
    const std::set<std::string> seen = reached(includes, file);
    for (const auto& [header, names] : named) {
      INFO(file << " uses names of " << header);
      CHECK((seen.contains(header) || !std::regex_search(text, names)));
    }
  }
  CHECK(texts.size() > 300);
}

TEST_CASE("the simulator and the measures see neither HDF5 nor options nor a terminal",
          "[sources]") {
  const std::set<std::string> hidden = {"iostream", "cstdio", "unistd.h", "fmt/core.h"};
  for (const char* folder : {"sim", "analysis"})
    for (const fs::path& file : sources_below(folder, {".cpp", ".hpp", ".inc", ".cu", ".cuh"}))
      for (const std::string& line : lines_of(kRoot / file)) {
        std::smatch found;
        if (!std::regex_search(line, found, kTheirs)) continue;
        const std::string header = found[1];
        INFO(file.generic_string() << " includes " << header);
        CHECK_FALSE(header.starts_with("hdf5"));
        CHECK_FALSE(header.starts_with("H5"));
        CHECK_FALSE((header.starts_with("boost/") && !header.starts_with("boost/math/") &&
                     !header.starts_with("boost/multiprecision/")));
        CHECK_FALSE(hidden.contains(header));
      }
}

TEST_CASE("source files have at most 500 lines, lines of C++ at most 100 columns", "[sources]") {
  size_t seen = 0;
  for (const char* folder : {"sim", "analysis", "io", "run", "cli", "plots", "data", "python",
                             "scripts", "tests", "bench", "cmake"})
    for (const fs::path& file :
         sources_below(folder, {".cpp", ".hpp", ".inc", ".cu", ".cuh", ".py", ".sh", ".cmake"})) {
      ++seen;
      const std::vector<std::string> lines = lines_of(kRoot / file);
      INFO(file.generic_string());
      CHECK(lines.size() <= 500);
      if (!std::set<std::string>{".cpp", ".hpp", ".inc", ".cu", ".cuh"}.contains(
              file.extension().string()))
        continue;
      for (const std::string& line : lines) {
        if (line.find_first_not_of(' ') == line.find('"')) continue;  // texts may be longer
        size_t width = 0;                                             // characters, not bytes
        for (const char c : line) width += (static_cast<unsigned char>(c) & 0xC0) != 0x80 ? 1 : 0;
        INFO(line);
        CHECK(width <= 100);
      }
    }
  CHECK(seen > 200);
}

/// Files of a folder are compiled as one: what a macro of one means must end with it.
TEST_CASE("macros of a source file end with it", "[sources]") {
  static const std::regex defines(R"(^#\s*define\s+(\w+))"), ends(R"(^#\s*undef\s+(\w+))");
  size_t seen = 0;
  for (const char* folder : {"sim/core", "sim/stages", "sim/policy", "sim/replay", "analysis", "io",
                             "run", "cli", "tests/contract", "tests/reference", "tests/sim"})
    for (const fs::path& file : sources_below(folder, {".cpp"})) {
      std::set<std::string> open;
      std::smatch found;
      for (const std::string& line : lines_of(kRoot / file)) {
        if (std::regex_search(line, found, defines)) open.insert(found[1]), ++seen;
        if (std::regex_search(line, found, ends)) open.erase(found[1]);
      }
      CAPTURE(file.generic_string(), open);
      CHECK(open.empty());
    }
  CHECK(seen > 0);
}

TEST_CASE("tests of stages and of policies are run by the tag of their folder", "[sources]") {
  for (const std::string folder : {"stages", "policy"})
    for (const fs::path& file : sources_below("tests/sim/" + folder, {".cpp"})) {
      size_t found = 0, tagged = 0;
      for (const std::string& line : lines_of(kRoot / file)) {
        found += line.starts_with("TEST_CASE(");
        tagged += line.find("[" + folder + "]") != std::string::npos;
      }
      CAPTURE(file.generic_string());
      CHECK(tagged == found);
    }
}

/// Kinds of one folder look alike: the names of each are in a namespace of their own.
TEST_CASE("kinds are registered in a namespace of their folder and thought", "[sources]") {
  size_t seen = 0;
  for (const fs::path& file : sources_below("sim/stages", {".cpp"})) {
    const std::vector<std::string> lines = lines_of(kRoot / file);
    const std::string own = "namespace kvsim::stages::" + file.parent_path().filename().string() +
                            "::";
    bool inside = false;
    for (const std::string& line : lines) {
      if (line.starts_with("namespace kvsim")) inside = line.starts_with(own);
      if (!line.starts_with("const Register<")) continue;
      seen += std::ranges::count(line, ',');  // after the stage, a kind each
      CAPTURE(file.generic_string(), line, own);
      CHECK(inside);
    }
  }
  CHECK(seen > 30);
}

/// Names of all presets and kinds; not `none` and `all`, which keys of other types take, too.
std::set<std::string> names_in_tables() {
  std::set<std::string> names;
  for (const Preset& preset : presets()) names.insert(preset.name);
  for (const KindInfo* kind : all_kinds()) names.insert(kind->name);
  names.erase("none");
  names.erase("all");
  return names;
}

/// The text that a line of code compares something with, or looks a preset or a kind up by.
std::vector<std::string> asked_for(const std::string& line) {
  static const std::string before = R"((?:[=!]=\s*|\b(?:is|find|starts_with)\((?:[^()]*,\s*)?))";
  static const std::regex asks(before + R"(\"([^\"]+)\"|\"([^\"]+)\"\s*[=!]=)");
  std::vector<std::string> names;
  for (std::sregex_iterator at(line.begin(), line.end(), asks), end; at != end; ++at)
    names.push_back((*at)[1].matched ? (*at)[1] : (*at)[2]);
  return names;
}

TEST_CASE("names of presets and kinds decide nothing outside the tables", "[sources]") {
  const std::set<std::string> names = names_in_tables();
  CHECK(asked_for("if (name == \"snapkv\") x = y(\"tova\");") ==
        std::vector<std::string>{"snapkv"});
  CHECK(asked_for("settings.is(\"merge\", \"d2o\") || \"h2o\" != name") ==
        std::vector<std::string>{"d2o", "h2o"});
  for (const char* folder : {"sim", "analysis", "io", "run", "cli"})
    for (const fs::path& file : sources_below(folder, {".cpp", ".hpp", ".inc", ".cu"}))
      for (const std::string& line : lines_of(kRoot / file))
        for (const std::string& name : asked_for(line)) {
          INFO(file.generic_string() << ": " << line);
          CHECK_FALSE(names.contains(name));
        }
}

}  // namespace
}  // namespace kvsim
