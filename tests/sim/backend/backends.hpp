#pragma once
#include <memory>
#include <string>
#include <vector>

#include "sim/backend/backend.hpp"
#include "sim/backend/cpu/verbs.hpp"
#include "tests/support/instruction_sets.hpp"

namespace kvsim::test {

/// Every backend that this machine runs, the CPU once per instruction set: the same test bodies
/// judge all of them. Only the device's if the environment has KVSIM_TEST_BACKEND=cuda.
struct NamedBackend {
  std::string name;
  std::unique_ptr<Backend> backend;
};
std::vector<NamedBackend> all_backends();

/// Largest relative L2 error of outputs against float64. Logits of size 5 carry 1e-6 from float32
/// dot products, exponentials and sums add 1e-7 each. On a device and on matrix tiles exp-scores of
/// 16-bit traces are the sum of two 16-bit parts, right to 8e-6 and 4e-6, which shows where few
/// keys share the attention.
double output_tolerance(const Backend& backend, const LayerTrace& layer);

/// Of shares of attention: errors of many keys average out, but a set may hang on one with a
/// float32 logit of size 20.
inline constexpr double kMassTolerance = 5e-6;

/// The loops of the CPU backend cut in every way that the benchmark tries, a member at a time; and
/// all in pieces so small that traces of tests have many.
struct NamedShapes {
  std::string name;
  Shapes shapes;
};
std::vector<NamedShapes> all_shapes();

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
