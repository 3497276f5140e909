#include "sim/core/output_path.hpp"

#include <cmath>

namespace kvsim {

double PathNorm::root(double sum_of_squares, double count) const {
  return std::sqrt(sum_of_squares / count + eps);
}

void OutputPath::read_gate(int64_t head, int64_t query, std::vector<float>& out) const {
  out.resize(static_cast<size_t>(gate.dim(2)));
  gate.read(head, query, query + 1, out.data());
}

}  // namespace kvsim
