#pragma once
#include <memory>

#include "sim/backend/backend.hpp"

namespace kvsim::host_cuda {

/// The CUDA backend on the host runtime; with `memory` bytes for it.
std::unique_ptr<Backend> make_backend();
std::unique_ptr<Backend> make_backend_with(int64_t memory);

}  // namespace kvsim::host_cuda
