#pragma once
#include <vector>

#include "sim/core/array.hpp"

namespace kvsim {

/// What curves over the prompt's positions are drawn from: the dimension `part`.
std::vector<Range> measured_parts(int64_t entries);

}  // namespace kvsim
