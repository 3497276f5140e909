#include "sim/backend/cuda_backend.hpp"
#include "sim/core/error.hpp"

namespace kvsim {

#ifdef KVSIM_CUDA

namespace cuda {
std::unique_ptr<Backend> make_backend();
}
bool has_cuda_backend() { return true; }
std::unique_ptr<Backend> make_cuda_backend() { return cuda::make_backend(); }

#else

bool has_cuda_backend() { return false; }
std::unique_ptr<Backend> make_cuda_backend() {
  usage_error({.what = "this build has no CUDA backend",
               .where = "--backend",
               .found = "cuda",
               .expected = "auto or cpu"});
}

#endif

}  // namespace kvsim
