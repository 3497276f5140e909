#pragma once
#include <algorithm>
#include <cstdint>
#include <span>

namespace kvsim {

/// out[i] = (sum of in[i + first] .. in[i + last], added in this order) / divisor, for the i in
/// begin..end-1, all of whose columns exist. Several i at a time: one sum would wait for each of
/// its additions.
inline void moving_mean(std::span<const double> in, int64_t begin, int64_t end, int64_t first,
                        int64_t last, double divisor, std::span<double> out) {
  constexpr int64_t kTogether = 8;
  int64_t i = begin;
  for (; i + kTogether <= end; i += kTogether) {
    double sums[kTogether] = {};
    for (int64_t c = first; c <= last; ++c) {
      const double* const from = in.data() + i + c;
      for (int64_t x = 0; x < kTogether; ++x) sums[x] += from[x];
    }
    for (int64_t x = 0; x < kTogether; ++x) out[static_cast<size_t>(i + x)] = sums[x] / divisor;
  }
  for (; i < end; ++i) {
    double sum = 0;
    for (int64_t c = first; c <= last; ++c) sum += in[static_cast<size_t>(i + c)];
    out[static_cast<size_t>(i)] = sum / divisor;
  }
}

}  // namespace kvsim
