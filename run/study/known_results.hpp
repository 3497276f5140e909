#pragma once
#include <string>

#include "analysis/dataset.hpp"

namespace kvsim {

/// The version of results files that this program writes, and the latest that it reads:
/// results.md 5.
inline constexpr int64_t kResultsVersion = 1;
inline constexpr const char* kResultsVersionAttribute = "results_version";

/// A results file that a command may use without looking twice: written by kvsim, of no later
/// version, the axes of a replay there, and every variable that this program declares of the type
/// and over the dimensions that it declares. Anything else is bad data. Variables that it does not
/// know are kept as they are.
Dataset read_known_results(const std::string& path);

/// Does it for results that were read already.
void check_known_results(const Dataset& results, const std::string& path);

}  // namespace kvsim
