#include "sim/backend/cpu/kernels.hpp"

#include <cstdlib>
#include <string>

#include "sim/core/error.hpp"

namespace kvsim {
namespace {

struct Level {
  const char* name;
  const Kernels* (*kernels)();
  bool (*runs)();
};

#if defined(__x86_64__)
bool runs_v4() { return __builtin_cpu_supports("x86-64-v4"); }
bool runs_v4_bf16() { return runs_v4() && __builtin_cpu_supports("avx512bf16"); }
bool runs_v3() { return __builtin_cpu_supports("x86-64-v3"); }
bool runs_v2() { return __builtin_cpu_supports("x86-64-v2"); }
#else
bool runs_v4_bf16() { return false; }
bool runs_v4() { return false; }
bool runs_v3() { return false; }
bool runs_v2() { return false; }
#endif

/// Widest first.
constexpr Level kLevels[] = {{"v4-bf16", kernels_v4_bf16, runs_v4_bf16},
                             {"v4", kernels_v4, runs_v4},
                             {"v3", kernels_v3, runs_v3},
                             {"v2", kernels_v2, runs_v2},
                             {"portable", kernels_portable, [] { return true; }}};

}  // namespace

const Kernels& choose_kernels() {
  const char* const wanted = std::getenv("KVSIM_ISA");
  const std::string name = wanted == nullptr ? "" : wanted;
  for (const Level& level : kLevels) {
    const Kernels* const kernels = level.kernels();
    const bool usable = kernels != nullptr && level.runs();
    if (usable && (name.empty() || name == level.name)) return *kernels;
    if (!usable && name == level.name)
      usage_error({"this machine cannot run the instruction set asked for", "KVSIM_ISA", name});
  }
  usage_error({"unknown instruction set", "KVSIM_ISA", name, "v2, v3, v4, v4-bf16 or portable"});
}

}  // namespace kvsim
