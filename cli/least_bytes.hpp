#pragma once
#include <string>

#include "analysis/dataset.hpp"

namespace kvsim::cli {

/// Choice of --equal-bytes: entries per owner and the bytes held, per policy and budget.
std::string equal_bytes_table(const Dataset& results);

/// The least bytes of each policy at which its stream error is at most `error`, in every form of a
/// cache: along lines between the budgets, both on a logarithmic scale.
std::string least_bytes_table(const Dataset& results, double error);

}  // namespace kvsim::cli
