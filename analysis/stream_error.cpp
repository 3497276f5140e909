#include "analysis/stream_error.hpp"

#include <cassert>
#include <cmath>

#include "analysis/output_error.hpp"

namespace kvsim {

void StreamError::add_layer(std::span<const double> error) {
  if (squares_.empty()) squares_.assign(error.size(), 0.0);
  assert(squares_.size() == error.size());
  for (size_t t = 0; t < error.size(); ++t) squares_[t] += error[t] * error[t];
}

std::vector<double> StreamError::relative_to(std::span<const double> norm) const {
  std::vector<double> roots(squares_.size());
  for (size_t t = 0; t < roots.size(); ++t) roots[t] = std::sqrt(squares_[t]);
  std::vector<double> relative(roots.size());
  relative_errors(roots, norm, relative);
  return relative;
}

}  // namespace kvsim
