#pragma once
#include <memory>
#include <string>
#include <vector>

#include "sim/backend/backend.hpp"

namespace kvsim::test {

/// Every backend that this machine runs, the CPU once per instruction set: the same test bodies
/// judge all of them. Only the device's if the environment has KVSIM_TEST_BACKEND=cuda.
struct NamedBackend {
  std::string name;
  std::unique_ptr<Backend> backend;
};
std::vector<NamedBackend> all_backends();

/// Instruction sets of the CPU backend that run here, widest first; `portable` is always the last.
std::vector<std::string> instruction_sets();

/// Names an instruction set in the environment while it lives.
class ForcedIsa {
 public:
  explicit ForcedIsa(const std::string& isa);
  ~ForcedIsa();
  ForcedIsa(const ForcedIsa&) = delete;
  ForcedIsa& operator=(const ForcedIsa&) = delete;

 private:
  bool was_set_;
  std::string before_;
};

/// Uses `count` threads while it lives.
class ForcedThreads {
 public:
  explicit ForcedThreads(int count);
  ~ForcedThreads();
  ForcedThreads(const ForcedThreads&) = delete;
  ForcedThreads& operator=(const ForcedThreads&) = delete;

 private:
  int before_;
};

}  // namespace kvsim::test
