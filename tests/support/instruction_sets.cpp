#include "tests/support/instruction_sets.hpp"

#include <cstdlib>

#include "sim/backend/backend.hpp"
#include "sim/core/error.hpp"

namespace kvsim::test {

ForcedIsa::ForcedIsa(const std::string& isa) {
  const char* const before = std::getenv("KVSIM_ISA");
  was_set_ = before != nullptr;
  if (was_set_) before_ = before;
  setenv("KVSIM_ISA", isa.c_str(), 1);
}

ForcedIsa::~ForcedIsa() {
  if (was_set_)
    setenv("KVSIM_ISA", before_.c_str(), 1);
  else
    unsetenv("KVSIM_ISA");
}

std::vector<std::string> instruction_sets() {
  std::vector<std::string> result;
  for (const std::string isa : {"v4-bf16", "v4", "v3", "v2", "portable"}) {
    const ForcedIsa forced(isa);
    try {
      make_cpu_backend();
      result.push_back(isa);
    } catch (const Error&) {  // this processor lacks it
    }
  }
  return result;
}

}  // namespace kvsim::test
