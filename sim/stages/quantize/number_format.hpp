#pragma once
#include <Eigen/Core>

#include "sim/core/prelude.hpp"

namespace kvsim {

/// A form in which numbers are stored with few bits (policies.md 11.1). A line is what is stored in
/// a row: an entry's numbers in one head, or a channel's.
struct NumberFormat {
  /// What rounding needs besides the line.
  struct Context {
    int64_t group = 32;  ///< numbers that share a scale, where the format has no size of its own
    float largest = 0;   ///< largest magnitude of all lines
  };
  std::string name;
  std::string meaning;
  std::string source;
  /// Replaces the numbers by what their codes stand for, in float32 arithmetic.
  std::function<void(std::span<float>, const Context&)> round;
  /// Bits of a line of so many numbers, scales included.
  std::function<int64_t(int64_t numbers, int64_t group)> bits;
  int64_t shared_bits = 0;  ///< once for all lines
};

/// All formats in order of name; and one, or nullptr.
std::vector<const NumberFormat*> number_formats();
const NumberFormat* find_format(std::string_view name);

/// Calls round(block) for every `size` numbers of a line; the last block may be short.
template <class Round>
void for_each_block(std::span<float> line, int64_t size, const Round& round) {
  for (size_t first = 0; first < line.size(); first += static_cast<size_t>(size))
    round(line.subspan(first, std::min<size_t>(size, line.size() - first)));
}
inline int64_t blocks_of(int64_t numbers, int64_t size) { return (numbers + size - 1) / size; }

/// The largest magnitude.
inline float largest_of(std::span<const float> numbers) {
  float largest = 0;
  for (const float x : numbers) largest = std::max(largest, std::fabs(x));
  return largest;
}

/// The nearest of ascending levels; halfway the lower.
inline double nearest(const std::vector<double>& levels, double x) {
  const auto above = std::ranges::lower_bound(levels, x);
  if (above == levels.begin()) return levels.front();
  if (above == levels.end()) return levels.back();
  return *above - x < x - *(above - 1) ? *above : *(above - 1);
}

/// An orthogonal map of a head's vectors (policies.md 11.1), the same for all heads and layers.
class Orthogonal {
 public:
  /// `hadamard`: Sylvester's matrix on blocks of the largest power of two that divides the size,
  /// over the root of the block's size; `random`: uniform among all, from a fixed seed.
  enum class Kind { none, hadamard, random };
  Orthogonal(Kind kind, int64_t size);
  void apply(std::span<float> row) const { multiply(row, false); }
  void undo(std::span<float> row) const { multiply(row, true); }

 private:
  void multiply(std::span<float> row, bool transposed) const;
  Eigen::MatrixXf matrix_;  ///< empty: nothing turns
};

}  // namespace kvsim
