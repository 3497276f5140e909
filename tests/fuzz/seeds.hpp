#pragma once
#include "sim/core/prelude.hpp"

/// Real files that fuzzing starts from: written by the program's own writers, the same every time.
namespace kvsim::fuzz {

std::vector<std::string> trace_seeds();
std::vector<std::string> results_seeds();
std::vector<std::string> scores_seeds();
/// A trace on disk that the results of results_seeds() are of; removed when the program ends.
const std::string& small_trace_file();

}  // namespace kvsim::fuzz
