#pragma once
#include "sim/core/prelude.hpp"

namespace kvsim {
/// toml++ asserts what some broken files do not hold, e.g. one with the line `[=[policy]]`.
[[noreturn]] inline void broken_toml() { throw std::runtime_error("a broken key or value"); }
}  // namespace kvsim
#define TOML_ASSERT(holds) static_cast<void>((holds) || (::kvsim::broken_toml(), false))
#include <toml++/toml.h>
#undef TOML_ASSERT
