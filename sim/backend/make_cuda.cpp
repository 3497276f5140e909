#include "sim/backend/cuda_backend.hpp"

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
  usage_error({"this build has no CUDA backend", "--backend", "cuda", "auto or cpu"});
}

#endif

}  // namespace kvsim
