#pragma once
#include "sim/core/array.hpp"

namespace kvsim {

/// R [size][size] with R^T R = G, so that |x W| = |R x| for G = W W^T.
struct GramFactor {
  Table<double> r;
  bool triangular = false;  ///< r(c, k) = 0 for k < c
};

/// Of a symmetric matrix without negative eigenvalues: its Cholesky factor, or, where G is not
/// numerically positive definite (W has fewer columns than rows, or equal rows), the square root of
/// the eigendecomposition, which is no triangle but needs no positive eigenvalue.
GramFactor factor_of_gram(const Table<double>& gram);

}  // namespace kvsim
