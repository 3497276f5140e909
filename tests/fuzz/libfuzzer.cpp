// The program that scripts/fuzz.sh runs: KVSIM_FUZZ names the target. Built by the preset `fuzz`.
#include <hdf5.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>

#include "sim/core/parallel.hpp"
#include "tests/fuzz/reader.hpp"
#include "tests/fuzz/targets.hpp"

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t most);

namespace {

using kvsim::fuzz::Target;

const Target* chosen = nullptr;
std::vector<std::string> seeds;

}  // namespace

/// With KVSIM_FUZZ_SEEDS the seeds are written into that folder, and nothing else is done.
extern "C" int LLVMFuzzerInitialize(int*, char***) {
  const char* const name = std::getenv("KVSIM_FUZZ");
  for (const Target& target : kvsim::fuzz::targets())
    if (name != nullptr && target.name == name) chosen = &target;
  if (chosen == nullptr) {
    std::fprintf(stderr, "KVSIM_FUZZ names a target:");
    for (const Target& target : kvsim::fuzz::targets())
      std::fprintf(stderr, " %s", target.name.c_str());
    std::fprintf(stderr, "\n");
    std::exit(2);
  }
  kvsim::set_threads(1);
  H5set_free_list_limits(-1, -1, -1, -1, -1, -1);  // its caches are a MiB for each file opened
  seeds = chosen->seeds();
  if (const char* const folder = std::getenv("KVSIM_FUZZ_SEEDS")) {
    for (size_t s = 0; s < seeds.size(); ++s)
      std::ofstream(std::filesystem::path(folder) / ("seed-" + std::to_string(s)), std::ios::binary)
          << seeds[s];
    std::exit(0);
  }
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static kvsim::fuzz::Reader reader(*chosen);
  if (chosen->hdf5)
    reader.run({data, size});
  else
    chosen->run({data, size});
  return 0;
}

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t most, unsigned seed) {
  if (!chosen->hdf5 || seed % 4 == 0) return LLVMFuzzerMutate(data, size, most);
  return kvsim::fuzz::mutate_hdf5(data, size, most, seed / 4, seeds);
}
