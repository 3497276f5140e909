#pragma once
#include <cuda_runtime.h>

#include <cstdint>
#include <limits>

namespace kvsim::cuda {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
/// A sink this far above all scores leaves them less than 1e-300, and exp() of more is infinite.
constexpr double kSinkAlone = 690.0;

// Operand types of the tensor cores; see tiles.hpp.
template <bool kBfloat16>
struct SixteenBit;
using Bfloat16 = SixteenBit<true>;
using Float16 = SixteenBit<false>;
struct Float32;

}  // namespace kvsim::cuda
