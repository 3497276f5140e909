#pragma once
#include "sim/core/prelude.hpp"

namespace kvsim::test {

/// Instruction sets of the CPU backend that run here, widest first, matrix tiles in portable code
/// among them; `portable` is always the last.
std::vector<std::string> instruction_sets();

/// Names an instruction set in the environment while it lives.
class ForcedIsa {
 public:
  explicit ForcedIsa(const std::string& isa);
  ~ForcedIsa();
  ForcedIsa(const ForcedIsa&) = delete;
  ForcedIsa& operator=(const ForcedIsa&) = delete;

 private:
  bool was_set_ = false;
  std::string before_;
};

}  // namespace kvsim::test
