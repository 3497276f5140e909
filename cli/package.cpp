#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "cli/command.hpp"
#include "io/side_files.hpp"

namespace kvsim::cli {
namespace {

constexpr const char* kCommands = "python/kvsim/commands.json";

std::string environment(const char* name, const std::string& otherwise = "") {
  const char* const value = std::getenv(name);
  return value == nullptr || *value == '\0' ? otherwise : value;
}

}  // namespace

std::map<std::string, std::string> package_commands() {
  std::map<std::string, std::string> summaries;
  std::ifstream file(shipped_file(kCommands));
  const auto commands = nlohmann::json::parse(file, nullptr, false);
  for (const auto& [name, one] : commands.items()) summaries[name] = one.value("summary", "");
  return summaries;
}

void hand_over(std::vector<std::string> words, bool users) {
  const std::string package = shipped_file(kCommands).parent_path().parent_path().string();
  const std::string path = environment("PYTHONPATH");
  setenv("PYTHONPATH", (path.empty() ? package : package + ":" + path).c_str(), 1);
  setenv("KVSIM_BIN", std::filesystem::read_symlink("/proc/self/exe").c_str(), 1);
  const std::string cache = environment("XDG_CACHE_HOME", environment("HOME") + "/.cache");
  std::vector<std::string> pythons = {cache + "/kvsim/plots/bin/python", "python3"};
  if (users) std::swap(pythons[0], pythons[1]);
  if (const auto chosen = environment("KVSIM_PYTHON"); !chosen.empty()) pythons = {chosen};
  words.insert(words.begin(), {"", "-P", "-m", "kvsim"});  // -P: nothing of this folder is ours
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  for (std::string& python : pythons) {
    arguments[0] = python.data();
    execvp(arguments[0], arguments.data());
  }
  throw Error(Fault::failure,
              {.what = "no Python to run",
               .where = words[4],
               .found = fmt::format("{}: {}", fmt::join(pythons, ", "), std::strerror(errno)),
               .hint = "scripts/quickstart.sh sets one up; KVSIM_PYTHON names another"});
}

void serve_functions(const Values& values, const std::vector<std::string>& typed,
                     const std::vector<Record>& records, const std::vector<std::string>& traces,
                     const std::vector<int>& layers, const std::string& folder) {
  std::set<std::string> functions;
  for (const Record& record : records)
    if (const std::string& one = record.settings.text("scores"); is_function(one))
      functions.insert("--function=" + one);
  set_scores_folder(text(values, "scores"));
  if (functions.empty() || has(values, "scores")) return;
  std::vector<std::string> words = {"score"};
  words.insert(words.end(), functions.begin(), functions.end());
  for (const std::string& trace : traces) words.push_back("--trace=" + trace);
  if (!layers.empty()) words.push_back(fmt::format("--layers={}", fmt::join(layers, ",")));
  if (!folder.empty()) words.push_back("--into=" + folder);
  words.emplace_back("--");
  words.insert(words.end(), typed.begin(), typed.end());
  hand_over(std::move(words), true);
}

}  // namespace kvsim::cli
