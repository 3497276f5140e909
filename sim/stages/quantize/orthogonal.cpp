#include "sim/stages/quantize/orthogonal.hpp"

#include <Eigen/QR>
#include <numbers>

#include "sim/core/numbers.hpp"

namespace kvsim {
namespace {

Eigen::MatrixXf sylvester(int64_t size) {
  const int64_t block = size & -size;  // the largest power of two that divides it
  const float scale = 1 / std::sqrt(static_cast<float>(block));
  Eigen::MatrixXf made = Eigen::MatrixXf::Zero(size, size);
  for (int64_t first = 0; first < size; first += block)
    for (int64_t r = 0; r < block; ++r)
      for (int64_t c = 0; c < block; ++c)
        made(first + r, first + c) = std::popcount(static_cast<uint64_t>(r & c)) % 2 == 0 ? scale
                                                                                          : -scale;
  return made;
}

/// Q of a matrix of normal numbers whose R has a positive diagonal is uniform among orthogonal
/// matrices.
Eigen::MatrixXf uniform_orthogonal(int64_t size) {
  Eigen::MatrixXd normal(size, size);
  for (int64_t r = 0; r < size; ++r)
    for (int64_t c = 0; c < size; ++c) {
      const auto at = static_cast<uint64_t>(r * size + c);
      normal(r, c) = std::sqrt(-2 * std::log(1 - uniform(0, at, 0, 0))) *
                     std::cos(2 * std::numbers::pi * uniform(0, at, 1, 0));
    }
  const Eigen::HouseholderQR<Eigen::MatrixXd> qr(normal);
  const Eigen::MatrixXd whole = qr.householderQ();
  const Eigen::VectorXd signs = qr.matrixQR().diagonal().unaryExpr(
      [](double x) { return x < 0 ? -1.0 : 1.0; });
  return (whole * signs.asDiagonal()).cast<float>();
}

}  // namespace

Orthogonal::Orthogonal(Kind kind, int64_t size) {
  if (kind == Kind::hadamard) matrix_ = sylvester(size);
  if (kind == Kind::random) matrix_ = uniform_orthogonal(size);
}

void Orthogonal::multiply(std::span<float> row, bool transposed) const {
  if (matrix_.size() == 0) return;
  Eigen::Map<Eigen::VectorXf> x(row.data(), std::ssize(row));
  x = transposed ? (matrix_.transpose() * x).eval() : (matrix_ * x).eval();
}

}  // namespace kvsim
