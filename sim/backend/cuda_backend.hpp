#pragma once
#include "sim/backend/backend.hpp"

namespace kvsim {

/// On the first CUDA device; an Error of one line without a build or a device for it.
std::unique_ptr<Backend> make_cuda_backend();
bool has_cuda_backend();  ///< whether this build has it

/// A backend with a memory of its own that can bring a layer there while it works on another.
struct PrefetchingBackend : Backend {
  /// Says that a layer is in work from now on: only then is there room for the next one.
  virtual void begin(const LayerTrace& layer) = 0;
  /// Says which layer comes after the one in work, as soon as it was read. May run beside any verb.
  virtual void prefetch(const LayerTrace& layer) = 0;
};

}  // namespace kvsim
