#include "bench/gemm.hpp"

#if defined(KVSIM_DNNL)
#include <oneapi/dnnl/dnnl.h>
#elif defined(KVSIM_OPENBLAS)
#include <cblas.h>
#else
#include <Eigen/Dense>
#include <algorithm>

#include "sim/core/parallel.hpp"
#endif

namespace kvsim::bench {

#if defined(KVSIM_DNNL)

const char* gemm_library() { return "oneDNN"; }
void gemm(int64_t m, int64_t n, int64_t k, const float* a, const float* b, bool transposed,
          float* c) {
  dnnl_sgemm('N', transposed ? 'T' : 'N', m, n, k, 1, a, k, b, transposed ? k : n, 0, c, n);
}

#elif defined(KVSIM_OPENBLAS)

const char* gemm_library() { return "OpenBLAS"; }
void gemm(int64_t m, int64_t n, int64_t k, const float* a, const float* b, bool transposed,
          float* c) {
  const auto narrow = [](int64_t x) { return static_cast<int>(x); };
  cblas_sgemm(CblasRowMajor, CblasNoTrans, transposed ? CblasTrans : CblasNoTrans, narrow(m),
              narrow(n), narrow(k), 1, a, narrow(k), b, narrow(transposed ? k : n), 0, c,
              narrow(n));
}

#else

const char* gemm_library() { return "Eigen"; }
void gemm(int64_t m, int64_t n, int64_t k, const float* a, const float* b, bool transposed,
          float* c) {
  using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  const int64_t rows = (m + threads() - 1) / threads();
  parallel_for(threads(), [&](int64_t part) {
    const int64_t begin = std::min(m, part * rows), count = std::min(rows, m - begin);
    Eigen::Map<Matrix> out(c + begin * n, count, n);
    const Eigen::Map<const Matrix> left(a + begin * k, count, k);
    if (transposed)
      out.noalias() = left * Eigen::Map<const Matrix>(b, n, k).transpose();
    else
      out.noalias() = left * Eigen::Map<const Matrix>(b, k, n);
  });
}

#endif

}  // namespace kvsim::bench
