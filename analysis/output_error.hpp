#pragma once
#include <cstdint>
#include <span>
#include <vector>

namespace kvsim {

/// An error relative to what it disturbs: error / reference; 0/0 is 0, and a positive error over 0
/// is NaN, "undefined" (metrics.md 2).
double relative_error(double error, double reference);

/// out[s] = relative_error(error[s], reference[s]); NaN where the error is NaN.
void relative_errors(std::span<const double> error, std::span<const double> reference,
                     std::span<double> out);

/// Number of steps with a positive error over a reference of 0.
int64_t undefined_errors(std::span<const double> error, std::span<const double> reference);

/// Indices of the steps that `--wo-steps count` evaluates among 0..steps-1:
/// floor(k * steps / count), k = 0..min(count, steps)-1; all of them when count is 0.
std::vector<int64_t> evaluated_steps(int64_t steps, int64_t count);

}  // namespace kvsim
