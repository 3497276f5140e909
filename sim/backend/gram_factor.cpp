#include "sim/backend/gram_factor.hpp"

#include <Eigen/Dense>

namespace kvsim {

GramFactor factor_of_gram(const Table<double>& gram) {
  using RowMajor = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  const int64_t size = gram.rows();
  const Eigen::MatrixXd g = Eigen::Map<const RowMajor>(gram.data(), size, size);
  const Eigen::LLT<Eigen::MatrixXd> cholesky(g);
  GramFactor result{Table<double>(size, size), false};
  Eigen::Map<RowMajor> r(result.r.data(), size, size);
  // A tiny pivot means that rounding, not W^h, decided the factor.
  result.triangular = cholesky.info() == Eigen::Success &&
                      cholesky.matrixL().toDenseMatrix().diagonal().minCoeff() >
                          1e-6 * cholesky.matrixL().toDenseMatrix().diagonal().maxCoeff();
  if (result.triangular) {
    r = cholesky.matrixU();
  } else {
    const Eigen::SelfAdjointEigenSolver<Eigen::MatrixXd> solver(g);
    const Eigen::VectorXd root = solver.eigenvalues().cwiseMax(0.0).cwiseSqrt();
    r = root.asDiagonal() * solver.eigenvectors().transpose();
  }
  return result;
}

}  // namespace kvsim
