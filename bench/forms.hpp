#pragma once
#include <string>
#include <vector>

#include "bench/problem.hpp"

namespace kvsim::bench {

/// One way to compute the same sets; `outputs` is null when it is only timed.
struct Form {
  std::string name;
  void (*run)(const Problem& problem, Outputs* outputs);
  bool comparable;  ///< gives outputs that can be judged
};

/// fused: the replay of the chosen backend.
/// sums: scores and their sums over the later queries, the work of H2O's score.
/// gather: per policy and budget, copy the kept keys and values, then dense attention on them.
/// mask: scores once, then per policy and budget a masked softmax and a product over all keys.
/// floor: the matrix products that the fused form cannot do without, by the library, nothing else.
const std::vector<Form>& forms();

}  // namespace kvsim::bench
