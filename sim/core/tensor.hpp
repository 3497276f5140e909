#pragma once
#include "sim/core/prelude.hpp"

namespace kvsim {

enum class ElementType { float32, float16, bfloat16 };

inline size_t element_size(ElementType type) { return type == ElementType::float32 ? 4 : 2; }
const char* element_name(ElementType type);

/// Widens `count` raw elements to float32. 16-bit input is converted here, never by HDF5.
void widen(ElementType type, const void* raw, int64_t count, float* out);
/// Rounds (to nearest even) `count` float32 values to `type`.
void narrow(ElementType type, const float* values, int64_t count, void* raw);

/// One IEEE binary16 value as float32 (exact; a signalling NaN becomes quiet), and back (to nearest
/// even, overflow to infinity). The portable forms of what widen and narrow do in bulk.
float half_to_float(uint16_t bits);
uint16_t float_to_half(float value);

/// Index of the first NaN or infinity among `count` raw elements; -1 if all are finite.
int64_t first_non_finite(ElementType type, const void* raw, int64_t count);

/// A three-dimensional tensor [a][b][c], row-major, kept in its stored element type.
/// Rows (the last axis) are widened to float32 when they are read. Copies share the elements.
class Tensor {
 public:
  Tensor() = default;
  Tensor(ElementType type, std::array<int64_t, 3> shape);

  ElementType type() const { return type_; }
  int64_t dim(int axis) const { return shape_[axis]; }
  int64_t count() const { return shape_[0] * shape_[1] * shape_[2]; }
  size_t bytes() const { return static_cast<size_t>(count()) * element_size(type_); }
  bool empty() const { return count() == 0; }

  std::byte* data() { return data_.get(); }
  const std::byte* data() const { return data_.get(); }
  const std::byte* row(int64_t a, int64_t b) const {
    return data_.get() + static_cast<size_t>((a * shape_[1] + b) * shape_[2]) * element_size(type_);
  }
  /// float32 copy of rows b0..b1-1 of slice a: out[(b1 - b0)][c].
  void read(int64_t a, int64_t b0, int64_t b1, float* out) const {
    assert(a >= 0 && a < shape_[0] && b0 >= 0 && b0 <= b1 && b1 <= shape_[1]);
    widen(type_, row(a, b0), (b1 - b0) * shape_[2], out);
  }

 private:
  ElementType type_ = ElementType::float32;
  std::array<int64_t, 3> shape_{0, 0, 0};
  std::shared_ptr<std::byte[]> data_;
};

}  // namespace kvsim
