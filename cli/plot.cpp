#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "cli/options.hpp"
#include "sim/core/error.hpp"

namespace kvsim::cli {
namespace {

namespace fs = std::filesystem;

/// Options that are handed to plots/draw.py as they are.
constexpr const char* kPassedOn[] = {"only", "formats", "budget", "layers"};

constexpr const char* kHint =
    "scripts/quickstart.sh sets up Python with matplotlib; KVSIM_PYTHON names another";

/// Ends with 0 when everything that the figures import is there; nothing is imported.
constexpr const char* kModuleCheck =
    "import importlib.util as u, sys; "
    "sys.exit(any(u.find_spec(m) is None for m in ('matplotlib', 'xarray', 'h5netcdf')))";

void describe(po::options_description& options) {
  const auto word = [](const char* placeholder) {
    return po::value<std::string>()->value_name(placeholder);
  };
  add_output_options(options, "folder of the figures, made when absent");
  add_policy_option(options);
  options.add_options()
      ("only", word("LIST"), "figures to draw, by comma (default: all that the file is enough for)")
      ("formats", word("LIST"), "pdf, png, csv for the numbers of tables (default: pdf,png)")
      ("budget", word("B"), "budget of the figures that show one (default: 0.5)")
      ("layers", word("LIST"), "layers to draw, e.g. 0,5,10-15 (default: all)");
}

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

/// plots/draw.py: of KVSIM_HOME, beside the program or one folder up, or of the source tree.
std::string find_script() {
  std::vector<fs::path> homes;
  if (const std::string home = environment("KVSIM_HOME"); !home.empty()) homes = {home};
  std::error_code fault;
  const fs::path program = fs::read_symlink("/proc/self/exe", fault);
  if (homes.empty() && !fault) {
    const fs::path folder = program.parent_path();
    homes = {folder, folder.parent_path(), folder.parent_path() / "share" / "kvsim"};
  }
  if (environment("KVSIM_HOME").empty()) homes.emplace_back(KVSIM_SOURCE_DIR);
  for (const fs::path& home : homes) {
    const fs::path script = home / "plots" / "draw.py";
    if (fs::is_regular_file(script, fault)) return script.string();
  }
  throw Error(Fault::failure, {.what = "plots/draw.py not found",
                               .where = "plot",
                               .found = "nothing in " + homes.front().string(),
                               .hint = "KVSIM_HOME names the folder that holds plots/"});
}

/// Candidates in order; the user's own choice is the only one when there is one.
std::vector<std::string> python_candidates() {
  if (const std::string chosen = environment("KVSIM_PYTHON"); !chosen.empty()) return {chosen};
  std::string cache = environment("XDG_CACHE_HOME");
  if (cache.empty()) cache = environment("HOME") + "/.cache";
  return {cache + "/kvsim/plots/bin/python", "python3"};
}

/// Exit status of a program with its output thrown away; 127 when it does not start.
int quiet_status(const std::vector<std::string>& words) {
  std::vector<char*> arguments;
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  const pid_t child = fork();
  if (child < 0) return 127;
  if (child == 0) {
    if (std::freopen("/dev/null", "w", stdout) == nullptr) _exit(127);
    if (std::freopen("/dev/null", "w", stderr) == nullptr) _exit(127);
    execvp(arguments[0], arguments.data());
    _exit(127);
  }
  int status = 0;
  if (waitpid(child, &status, 0) < 0 || !WIFEXITED(status)) return 127;
  return WEXITSTATUS(status);
}

std::string find_python() {
  bool started = false;
  for (const std::string& python : python_candidates()) {
    const int status = quiet_status({python, "-c", kModuleCheck});
    if (status == 0) return python;
    started = started || status != 127;
  }
  throw Error(Fault::failure, {.what = started ? "Python has no matplotlib, xarray or h5netcdf"
                                               : "no Python to draw with",
                               .where = "plot",
                               .hint = kHint});
}

int run(const Values& values) {
  if (!has(values, "out")) {
    usage_error(
        {.what = "missing -o", .where = "plot", .expected = "kvsim plot RESULTS.nc -o DIR"});
  }
  std::vector<std::string> words = {find_python(), find_script()};
  words.push_back("--out=" + text(values, "out"));
  for (const char* option : kPassedOn) {
    if (has(values, option))
      words.push_back(std::string("--") + option + "=" + text(values, option));
  }
  for (const std::string& policy : texts(values, "policy")) words.push_back("--policy=" + policy);
  if (has(values, "overwrite")) words.emplace_back("--overwrite");
  words.emplace_back("--");
  for (const std::string& file : values["results"].as<std::vector<std::string>>()) {
    words.push_back(file);
  }
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  execvp(arguments[0], arguments.data());
  throw Error(Fault::failure, {.what = "Python does not start", .where = words[0],
                               .found = std::strerror(errno), .hint = kHint});
}

const bool registered = register_command(
    {.name = "plot",
     .summary = "draw the figures of results files",
     .arguments = {{.name = "results", .meaning = "results files", .many = true}},
     .description =
         "Runs plots/draw.py: PDF and PNG per figure, a folder per file when there are several.\n"
         "Also draws what `kvsim theory --json` and `kvsim explain --json` print (FILE.json).\n"
         "Python is that of KVSIM_PYTHON, of scripts/quickstart.sh, or python3.",
     .describe = describe,
     .examples = {"kvsim plot sample.nc -o figures",
                  "kvsim plot sample.nc -o figures --only retained_importance --budget 0.2"},
     .run = run});

}  // namespace
}  // namespace kvsim::cli
