#include "analysis/output_error.hpp"

#include <algorithm>
#include <limits>
#include <numeric>

namespace kvsim {

double relative_error(double error, double reference) {
  if (reference != 0) return error / reference;
  return error == 0 ? 0.0 : std::numeric_limits<double>::quiet_NaN();
}

void relative_errors(std::span<const double> error, std::span<const double> reference,
                     std::span<double> out) {
  for (size_t s = 0; s < out.size(); ++s) out[s] = relative_error(error[s], reference[s]);
}

int64_t undefined_errors(std::span<const double> error, std::span<const double> reference) {
  int64_t count = 0;
  for (size_t s = 0; s < error.size(); ++s) count += error[s] > 0 && reference[s] == 0;
  return count;
}

std::vector<int64_t> evaluated_steps(int64_t steps, int64_t count) {
  if (count == 0) count = steps;
  std::vector<int64_t> chosen(static_cast<size_t>(std::min(count, steps)));
  for (size_t k = 0; k < chosen.size(); ++k) {
    chosen[k] = static_cast<int64_t>(k) * steps / std::min(count, steps);
  }
  return chosen;
}

}  // namespace kvsim
