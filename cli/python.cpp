#include "cli/python.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#ifdef __linux__
#include <sys/prctl.h>
#endif

#include "sim/core/error.hpp"

namespace kvsim::cli {
namespace {

namespace fs = std::filesystem;

constexpr const char* kHint = "scripts/quickstart.sh sets one up; KVSIM_PYTHON names another";
constexpr const char* kModelHint =
    "~/.cache/kvsim/plots/bin/pip install -r data/requirements.txt; KVSIM_PYTHON names another";
constexpr const char* kWheelHint = "pip install 'kvsim[capture,search]'";

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::vector<char*> argument_array(std::vector<std::string>& words) {
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  return arguments;
}

/// Folders that may hold what is not in the program, the nearest first.
std::vector<fs::path> homes() {
  if (const std::string home = environment("KVSIM_HOME"); !home.empty()) return {home};
  std::vector<fs::path> folders;
  if (const fs::path program = this_program(); !program.empty()) {
    const fs::path folder = program.parent_path();
    folders = {folder, folder.parent_path(), folder.parent_path() / "share" / "kvsim"};
  }
  folders.emplace_back(KVSIM_SOURCE_DIR);
  return folders;
}

[[noreturn]] void not_found(const std::string& what, const char* command) {
  throw Error(Fault::failure, {.what = what + " not found",
                               .where = command,
                               .found = "nothing in " + homes().front().string(),
                               .hint = "KVSIM_HOME names the folder that holds python/kvsim/"});
}

/// Candidates in order; the user's own choice is the only one when there is one.
std::vector<std::string> python_candidates(Interpreter preferred) {
  if (const std::string chosen = environment("KVSIM_PYTHON"); !chosen.empty()) return {chosen};
  std::string cache = environment("XDG_CACHE_HOME");
  if (cache.empty()) cache = environment("HOME") + "/.cache";
  const std::string ours = cache + "/kvsim/plots/bin/python";
  if (preferred == Interpreter::users) return {"python3", ours};
  if (preferred == Interpreter::ours) return {ours, "python3"};
  const std::string torch = environment("KVSIM_TORCH");
  if (!torch.empty()) return {torch};
  return {ours, cache + "/kvsim/torch/bin/python", "python3"};
}

int exit_status(pid_t child) {
  int status = 0;
  while (waitpid(child, &status, 0) < 0)
    if (errno != EINTR) return 127;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/// Exit status of a program with its output thrown away; 127 when it does not start.
int quiet_status(std::vector<std::string> words) {
  const std::vector<char*> arguments = argument_array(words);
  const pid_t child = fork();
  if (child < 0) return 127;
  if (child == 0) {
    if (std::freopen("/dev/null", "w", stdout) == nullptr) _exit(127);
    if (std::freopen("/dev/null", "w", stderr) == nullptr) _exit(127);
    execvp(arguments[0], arguments.data());
    _exit(127);
  }
  return exit_status(child);
}

/// What to do when Python lacks modules.
const char* advice(Interpreter preferred) {
  std::error_code fault;
  const fs::path beside = this_program();  // of a wheel: kvsim/bin/kvsim
  if (fs::is_regular_file(beside.parent_path().parent_path() / "__init__.py", fault))
    return kWheelHint;
  return preferred == Interpreter::models ? kModelHint : kHint;
}

}  // namespace

std::string find_module(const std::string& name, const char* command) {
  std::error_code fault;
  for (const fs::path& candidate : homes())
    for (const fs::path& package : {candidate / "python" / "kvsim", candidate}) {
      const fs::path script = package / name;
      if (fs::is_regular_file(script, fault)) return script.string();
    }
  not_found("python/kvsim/" + name, command);
}

std::string shipped(const std::string& path) {
  std::error_code fault;
  if (!path.starts_with("data/") || fs::exists(path, fault)) return path;
  for (const fs::path& candidate : homes())
    if (fs::is_regular_file(candidate / path, fault)) return (candidate / path).string();
  return path;
}

std::string this_program() {
  std::error_code fault;
  return fs::read_symlink("/proc/self/exe", fault).string();
}

std::string find_python(const std::vector<std::string>& modules, const char* command,
                        Interpreter preferred) {
  std::vector<std::string> check = {"", "-c",
                                    "import importlib.util as u, sys; "
                                    "sys.exit(any(u.find_spec(m) is None for m in sys.argv[1:]))"};
  check.insert(check.end(), modules.begin(), modules.end());
  bool started = false;
  for (const std::string& python : python_candidates(preferred)) {
    check[0] = python;
    const int status = quiet_status(check);
    if (status == 0) return python;
    started = started || status != 127;
  }
  throw Error(Fault::failure,
              {.what = started ? fmt::format("Python lacks one of {}", fmt::join(modules, ", "))
                               : "no Python to run",
               .where = command,
               .hint = advice(preferred)});
}

void become(std::vector<std::string> words) {
  const std::vector<char*> arguments = argument_array(words);
  execvp(arguments[0], arguments.data());
  throw Error(Fault::failure, {.what = "Python does not start",
                               .where = words[0],
                               .found = std::strerror(errno),
                               .hint = kHint});
}

int run_python(std::vector<std::string> words,
               const std::function<void(const std::string&)>& hear) {
  std::array<int, 2> ends{};
  if (pipe(ends.data()) != 0) return 127;
  const std::vector<char*> arguments = argument_array(words);
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) {
#ifdef __linux__
    prctl(PR_SET_PDEATHSIG, SIGTERM);
#endif
    dup2(ends[1], STDOUT_FILENO);
    close(ends[0]);
    close(ends[1]);
    execvp(arguments[0], arguments.data());
    _exit(127);
  }
  close(ends[1]);
  if (std::FILE* const lines = child < 0 ? nullptr : fdopen(ends[0], "r")) {
    char* line = nullptr;
    size_t room = 0;
    for (ssize_t length = 0; (length = getline(&line, &room, lines)) >= 0;) {
      std::string text(line, static_cast<size_t>(length));
      while (text.ends_with('\n')) text.pop_back();
      hear(text);
    }
    std::free(line);
    std::fclose(lines);
  } else {
    close(ends[0]);
  }
  return child < 0 ? 127 : exit_status(child);
}

}  // namespace kvsim::cli
