#include "tests/fuzz/seeds.hpp"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>

#include "cli/command.hpp"
#include "io/hdf5.hpp"
#include "io/trace_reader.hpp"
#include "io/trace_writer.hpp"
#include "run/trace/synth.hpp"

namespace kvsim::fuzz {
namespace {

namespace fs = std::filesystem;

/// A folder of this process, removed when it ends.
class Folder {
 public:
  Folder() {
    std::string pattern = (fs::temp_directory_path() / "kvsim-seeds-XXXXXX").string();
    if (mkdtemp(pattern.data()) == nullptr) throw std::runtime_error("no folder for seeds");
    path_ = pattern;
  }
  ~Folder() {
    std::error_code ignored;
    if (getpid() == owner_) fs::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::string operator/(const char* name) const { return (path_ / name).string(); }

 private:
  fs::path path_;
  pid_t owner_ = getpid();
};

const Folder& folder() {
  static const Folder made;
  return made;
}

std::string bytes_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

SynthConfig smallest() {
  SynthConfig config;
  config.prompt = 12;
  config.steps = 4;
  config.heads = 2;
  config.kv_heads = 1;
  config.head_dim = config.value_dim = 4;
  config.hidden = 5;
  config.spans = {{"defense", 2, 4}, {"directive", 4, 7}};
  return config;
}

/// The same trace with ids and texts of its tokens.
void add_tokens(const std::string& from, const std::string& to) {
  const TraceReader reader(from);
  TraceInfo info = reader.info();
  info.probes.clear();
  TraceWriter writer(to, info);
  std::vector<int32_t> ids;
  std::vector<std::string> texts;
  for (int i = 0; i < 16; ++i) {
    ids.push_back(i);
    texts.push_back(i % 2 == 0 ? " \xC3\xA9" : "<b>$x$\x1b[31m");
  }
  writer.write_tokens(ids, texts);
  for (const int layer : info.layers) {
    LayerTrace read = reader.read_layer(layer, true);
    read.probes.clear();
    writer.write_layer(read);
  }
  writer.commit();
}

/// [trace with tokens; trace with a probe, a sink, a softcap, a window]
const std::vector<std::string>& trace_files() {
  static const std::vector<std::string> files = [] {
    SynthConfig config = smallest();
    write_synth(config, folder() / "plain.h5");
    add_tokens(folder() / "plain.h5", folder() / "tokens.h5");
    config.type = ElementType::float32;
    config.softcap = 5;
    config.sliding_window = 3;
    config.sink = true;
    config.probe_chunk = 6;
    config.num_layers = 1;
    write_synth(config, folder() / "probe.h5");
    return std::vector<std::string>{folder() / "tokens.h5", folder() / "probe.h5"};
  }();
  return files;
}

}  // namespace

const std::string& small_trace_file() { return trace_files().front(); }

std::vector<std::string> trace_seeds() {
  std::vector<std::string> all;
  for (const std::string& file : trace_files()) all.push_back(bytes_of(file));
  return all;
}

std::vector<std::string> results_seeds() {
  const std::string out = folder() / "out.nc";
  std::vector<std::string> all;
  for (const char* const extra : {"--save-keep", "--metric=risk,drift"}) {
    const char* const words[] = {"kvsim",
                                 "replay",
                                 small_trace_file().c_str(),
                                 "--policy",
                                 "snapkv,window=2",
                                 "--policy",
                                 "knorm",
                                 "--budget",
                                 "0.5,3",
                                 "-q",
                                 "--threads",
                                 "1",
                                 "--overwrite",
                                 extra,
                                 "-o",
                                 out.c_str()};
    if (run_command_line(static_cast<int>(std::size(words)), words) != 0)
      throw std::runtime_error("no results to start from");
    all.push_back(bytes_of(out));
  }
  return all;
}

std::vector<std::string> scores_seeds() {
  const std::string path = folder() / "scores.h5";
  h5::OutputFile file(path);
  const std::vector<float> scores(20, 0.5f);
  file.write("layers/0/score", H5T_NATIVE_FLOAT, {2, 10}, scores.data());
  file.commit();
  return {bytes_of(path)};
}

}  // namespace kvsim::fuzz
