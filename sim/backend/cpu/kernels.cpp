#include "sim/backend/cpu/kernels.hpp"

#include <cstdlib>
#include <string>

#if defined(__x86_64__) && defined(__linux__)
#include <sys/syscall.h>
/// Of <unistd.h>, whose files and terminals are none of the simulator's business.
extern "C" long syscall(long number, ...) noexcept;
#endif

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
#if defined(__linux__)
/// The state of the tiles is large: Linux gives it only to a program that has asked, once for all
/// of its threads (ARCH_REQ_XCOMP_PERM, the 18th part of a thread's state).
bool may_use_tiles() { return syscall(SYS_arch_prctl, 0x1023, 18) == 0; }
#else
bool may_use_tiles() { return false; }
#endif
bool runs_amx() {
  return runs_v4() && __builtin_cpu_supports("amx-tile") && __builtin_cpu_supports("amx-bf16") &&
         may_use_tiles();
}
bool runs_v4_bf16() { return runs_v4() && __builtin_cpu_supports("avx512bf16"); }
bool runs_v3() { return __builtin_cpu_supports("x86-64-v3"); }
bool runs_v2() { return __builtin_cpu_supports("x86-64-v2"); }
#else
bool runs_amx() { return false; }
bool runs_v4_bf16() { return false; }
bool runs_v4() { return false; }
bool runs_v3() { return false; }
bool runs_v2() { return false; }
#endif

/// Widest first; what comes after `portable`, which runs anywhere, is used only if it is named: the
/// kernels of `amx` with their tiles in portable code, for tests.
constexpr Level kLevels[] = {{"amx", kernels_amx, runs_amx},
                             {"v4-bf16", kernels_v4_bf16, runs_v4_bf16},
                             {"v4", kernels_v4, runs_v4},
                             {"v3", kernels_v3, runs_v3},
                             {"v2", kernels_v2, runs_v2},
                             {"portable", kernels_portable, [] { return true; }},
                             {"amx-emulated", kernels_amx_emulated, [] { return true; }}};

}  // namespace

const Kernels& choose_kernels() {
  const char* const wanted = std::getenv("KVSIM_ISA");
  const std::string name = wanted == nullptr ? "" : wanted;
  for (const Level& level : kLevels) {
    const Kernels* const kernels = level.kernels();
    const bool usable = kernels != nullptr && level.runs();
    if (usable && (name.empty() || name == level.name)) return *kernels;
    if (!usable && name == level.name)
      usage_error({.what = "this machine cannot run the instruction set asked for",
                   .where = "KVSIM_ISA",
                   .found = name});
  }
  usage_error({.what = "unknown instruction set",
               .where = "KVSIM_ISA",
               .found = name,
               .expected = "v2, v3, v4, v4-bf16, amx, portable or amx-emulated"});
}

}  // namespace kvsim
