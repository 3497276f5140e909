// The stored corpus of fuzzing and fresh mutations, without libFuzzer: in every test run.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <random>

#include "sim/core/parallel.hpp"
#include "tests/fuzz/targets.hpp"
#include "tests/io/trace_fixture.hpp"
#include "tests/support/paths.hpp"

using namespace kvsim;
using namespace kvsim::test;
namespace fs = std::filesystem;

namespace {

constexpr unsigned kFewFiles = 100, kFewTexts = 2000;  // mutations of a target in a test run
constexpr unsigned kBatch = 100;                       // inputs of one process

fuzz::Bytes bytes_of(const std::string& text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

/// Runs inputs in a process of its own, where a crash of HDF5 is answered as in the program. Those
/// of a batch that does not end well are run one by one, and named.
void check(const fuzz::Target& target, const std::vector<std::string>& inputs,
           const std::function<std::string(size_t)>& name, const std::string& err) {
  const auto status = [&](size_t begin, size_t end) {
    return status_of(err, [&] {
      set_threads(1);  // those of the parent are not here
      for (size_t i = begin; i < end; ++i) target.run(bytes_of(inputs[i]));
    });
  };
  if (status(0, inputs.size()) == 0) return;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const int code = status(i, i + 1);
    INFO(target.name << ": " << name(i));
    if (const char* place = std::getenv("KVSIM_FUZZ_FINDS"); place && code != 0 && code != 3)
      write_bytes(std::string(place) + "/" + target.name + "-" + std::to_string(i), inputs[i]);
    CHECK((code == 0 || code == 3));  // 3: HDF5 crashed, and the guard answered
  }
}

/// A real input, changed: files where their structure is, texts in a few places.
std::string mutated(const fuzz::Target& target, const std::vector<std::string>& seeds,
                    unsigned number) {
  std::minstd_rand random(number + 1);
  std::string input = seeds[random() % seeds.size()];
  if (target.hdf5) {
    const size_t size = input.size(), most = 2 * size;
    input.resize(most);
    input.resize(
        fuzz::mutate_hdf5(reinterpret_cast<uint8_t*>(input.data()), size, most, number, seeds));
    return input;
  }
  for (unsigned changes = 1 + random() % 4; changes > 0 && !input.empty(); --changes) {
    const size_t at = random() % input.size();
    const std::string other = seeds[random() % seeds.size()];
    switch (random() % 5) {
      case 0: input[at] = static_cast<char>(random()); break;
      case 1: input.erase(at, 1 + random() % 4); break;
      case 2:
        input.insert(at, 1 + random() % 3, "0123456789.,=:+-e%\"[]\n\x1b\xff"[random() % 22]);
        break;
      case 3: input.insert(at, other.substr(random() % (other.size() + 1), random() % 9)); break;
      default: input[at] = input[random() % input.size()];
    }
  }
  return input;
}

}  // namespace

TEST_CASE("every input of the stored corpus is taken or answered in one line", "[fuzz][bad]") {
  const TemporaryFolder folder;
  for (const fuzz::Target& target : fuzz::targets()) {
    const std::string packed = std::string(kSourceDir) + "/tests/fuzz/corpus/" + target.name +
                               ".tar.gz";
    CHECK(!target.seeds().empty());
    std::vector<std::string> names, inputs = target.seeds();
    for (size_t s = 0; s < inputs.size(); ++s) names.push_back("seed " + std::to_string(s));
    if (fs::exists(packed)) {
      const std::string place = folder / target.name;
      fs::create_directory(place);
      REQUIRE(std::system(("tar -xzf " + packed + " -C " + place).c_str()) == 0);
      for (const auto& entry : fs::recursive_directory_iterator(place)) {
        if (!entry.is_regular_file()) continue;
        names.push_back(entry.path().filename());
        inputs.push_back(read_bytes(entry.path()));
      }
    }
    check(
        target, inputs, [&](size_t i) { return names[i]; }, folder / "err");
  }
}

/// KVSIM_FUZZ_RUNS=N: as many of each target. KVSIM_FUZZ: of this one only. Finds go into the
/// folder KVSIM_FUZZ_FINDS.
TEST_CASE("fresh mutations of real inputs are taken or answered in one line", "[fuzz][bad]") {
  const TemporaryFolder folder;
  const char* const wanted = std::getenv("KVSIM_FUZZ_RUNS");
  const char* const only = std::getenv("KVSIM_FUZZ");
  for (const fuzz::Target& target : fuzz::targets()) {
    if (only != nullptr && target.name != only) continue;
    const std::vector<std::string> seeds = target.seeds();
    const unsigned runs = wanted != nullptr ? static_cast<unsigned>(std::atoi(wanted))
                          : target.hdf5     ? kFewFiles
                                            : kFewTexts;
    const unsigned batch = target.hdf5 ? kBatch : 20 * kBatch;
    for (unsigned first = 0; first < runs; first += batch) {
      std::vector<std::string> inputs;
      for (unsigned i = first; i < std::min(first + batch, runs); ++i)
        inputs.push_back(mutated(target, seeds, i));
      check(
          target, inputs, [&](size_t i) { return "mutation " + std::to_string(first + i); },
          folder / "err");
    }
  }
}
