// Inputs that are HDF5 files: traces, results, scores; as the commands take them.
#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>

#include "analysis/dataset.hpp"
#include "cli/command.hpp"
#include "io/side_files.hpp"
#include "io/trace_reader.hpp"
#include "run/sweep/sweep.hpp"
#include "tests/fuzz/seeds.hpp"
#include "tests/fuzz/targets.hpp"

namespace kvsim::fuzz {
namespace {

/// What a command prints is not looked at here.
class Silence {
 public:
  Silence() {
    const int nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
    for (const int stream : {STDOUT_FILENO, STDERR_FILENO}) {
      std::fflush(stream == STDOUT_FILENO ? stdout : stderr);
      before_[stream - 1] = dup(stream);
      dup2(nowhere, stream);
    }
    close(nowhere);
  }
  ~Silence() {
    std::fflush(stdout);
    for (const int stream : {STDOUT_FILENO, STDERR_FILENO}) {
      dup2(before_[stream - 1], stream);
      close(before_[stream - 1]);
    }
  }
  Silence(const Silence&) = delete;
  Silence& operator=(const Silence&) = delete;

 private:
  int before_[2] = {-1, -1};
};

/// The exit code of a command in this process; 1, "failed", is what no input may lead to.
int command(std::vector<std::string> words) {
  const Silence silence;
  words.insert(words.begin(), "kvsim");
  std::vector<const char*> given;
  for (const std::string& word : words) given.push_back(word.c_str());
  const int code = run_command_line(static_cast<int>(given.size()), given.data());
  promise(code != cli::kFailed, "a command takes or refuses its input");
  return code;
}

void trace(Bytes input) {
  const InputOnDisk file(input);
  const TraceReader reader(file.path());
  promise(reader.token_text().empty() || std::ssize(reader.token_text()) == reader.info().total_len,
          "a text for each token");
  reader.token_ids();
  for (const int layer : reader.info().layers) reader.read_layer(layer, true);
}

void inspect(Bytes input) {
  const InputOnDisk file(input);
  command(input.size() % 2 == 0 ? std::vector<std::string>{"inspect", file.path(), "--json"}
                                : std::vector<std::string>{"inspect", file.path()});
}

/// One of several uses, by a mark of the content: as many inputs meet each, in less time for all.
size_t one_of(Bytes input, size_t uses) {
  size_t sum = 0;
  for (const uint8_t byte : input) sum = sum * 31 + byte;
  return (sum >> 7) % uses;
}

void replay(Bytes input) {
  const InputOnDisk file(input);
  const std::string out = file.path() + ".nc";
  const char* const policies[] = {"snapkv,window=2", "restkv,window=2", "keepkv,window=2"};
  const size_t use = one_of(input, 5);
  command({"replay", file.path(), "--policy", policies[use % 3], "--budget", "0.5,3", "--threads",
           "1", "--save-keep", "-o", out});
  if (use < 3) command({"explain", out, "--trace", file.path()});
  std::filesystem::remove(out);
}

/// Everything but the figures that is made of results.
void results(Bytes input) {
  const InputOnDisk file(input);
  const std::string &path = file.path(), out = path + ".out";
  switch (one_of(input, 5)) {
    case 0: {
      const Dataset read = read_results(path);
      tidy_csv({{"a", &read}, {"b", &read}});
      tidy_json({{"a", &read}});
      break;
    }
    case 1: command({"merge", path, "-o", out, "--overwrite"}); break;
    case 2: command({"merge", path, path, "-o", out, "--overwrite"}); break;
    case 3: command({"explain", path}); break;
    default: command({"explain", path, "--trace", small_trace_file(), "--json"});
  }
  std::filesystem::remove(out);
}

void scores(Bytes input) {
  const InputOnDisk file(input);
  const Table<double> read = read_scores(file.path(), 0, 2, 10);
  promise(read.rows() == 2, "scores have the rows that they were asked for");
}

const bool file_targets[] = {
    add_target({"inspect", [](Bytes input) { answered(inspect, input); }, true, trace_seeds}),
    add_target({"replay", [](Bytes input) { answered(replay, input); }, true, trace_seeds}),
    add_target({"results", [](Bytes input) { answered(results, input); }, true, results_seeds}),
    add_target({"scores", [](Bytes input) { answered(scores, input); }, true, scores_seeds}),
    add_target({"trace", [](Bytes input) { answered(trace, input); }, true, trace_seeds})};

}  // namespace
}  // namespace kvsim::fuzz
