#include "run/study/layer_store.hpp"

#include <filesystem>
#include <fstream>
#include <sstream>

#include "io/temporary_file.hpp"
#include "io/trace_reader.hpp"

namespace kvsim {
namespace {

namespace fs = std::filesystem;

constexpr const char* kEnding = ".layer";
constexpr size_t kSeal = 32;  // hex digits before the state

}  // namespace

std::string LayerStore::name(LayerPass pass, int layer) const {
  return key_ + (pass == LayerPass::scores ? "-scores-" : "-replay-") + std::to_string(layer) +
         kEnding;
}

/// Digest of the state and of all that says whose state it is.
std::string LayerStore::seal(const std::string& name, const std::string& state) const {
  return text_digest(name + "\n" + device_ + "\n" + state);
}

std::optional<std::string> LayerStore::load(LayerPass pass, int layer) {
  const std::string file = name(pass, layer);
  std::ifstream in(fs::path(folder_) / file, std::ios::binary);
  if (!in) return std::nullopt;
  names_.insert(file);
  std::ostringstream bytes;
  bytes << in.rdbuf();
  const std::string text = std::move(bytes).str();
  if (!in || text.size() < kSeal) return std::nullopt;
  std::string state = text.substr(kSeal);
  if (text.compare(0, kSeal, seal(file, state)) != 0) return std::nullopt;
  return state;
}

void LayerStore::save(LayerPass pass, int layer, const std::string& state) {
  const std::string file = name(pass, layer);
  write_file(seal(file, state) + state, (fs::path(folder_) / file).string(), false);
  names_.insert(file);
}

void LayerStore::clear() {
  std::error_code fault;  // what stays is removed by a later run
  for (const std::string& file : names_) fs::remove(fs::path(folder_) / file, fault);
  names_.clear();
}

void remove_layers(const std::string& folder, const std::set<std::string>& keys) {
  std::error_code fault;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, fault)) {
    const std::string name = entry.path().filename().string();
    if (entry.path().extension() != kEnding || !keys.contains(name.substr(0, name.find('-'))))
      continue;
    std::error_code ignored;
    fs::remove(entry.path(), ignored);
  }
}

}  // namespace kvsim
