#pragma once
#include <cublas_v2.h>

#include <mutex>
#include <string>

#include "sim/backend/cuda/downloads.hpp"
#include "sim/backend/cuda/layer.hpp"
#include "sim/backend/cuda/replay_memory.hpp"
#include "sim/backend/cuda/verb_memory.hpp"

/// Every call of cuBLAS goes through this.
#define KVSIM_BLAS_CHECK(call)                                                                   \
  do {                                                                                           \
    const cublasStatus_t kvsim_status = (call);                                                  \
    if (kvsim_status != CUBLAS_STATUS_SUCCESS)                                                   \
      ::kvsim::cuda::call_failed(#call, __FILE__, __LINE__, cublasGetStatusString(kvsim_status), \
                                 kvsim_status == CUBLAS_STATUS_ALLOC_FAILED);                    \
  } while (false)

namespace kvsim::cuda {

/// Parts that all verbs share: the device, a stream for the kernels, and the layers on the device.
/// Verbs run one at a time; whoever comes from another thread waits.
struct Context {
  explicit Context(int64_t bytes) : memory(bytes), store(bytes) {
    KVSIM_BLAS_CHECK(cublasCreate(&blas));
  }
  ~Context() { cublasDestroy(blas); }
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  std::string device;         ///< name, for the run record
  int64_t memory;             ///< bytes of the device that may be used
  int64_t shared_memory = 0;  ///< bytes that a block may have
  std::mutex verb;
  Stream compute;
  LayerStore store;
  ReplayMemory replay;
  RowMemory rows;
  SlotMemory slots;
  ValueMemory values;
  NormMemory norms;
  ProjectionMemory projection;
  Downloads downloads;
  cublasHandle_t blas = nullptr;
};

/// Stops with one line if a block would need more shared memory than the device has.
void check_shared_memory(const Context& context, int64_t bytes, const LayerTrace& layer);

/// visit(keys) for every part of positions begin..end-1 that fits on the device, after it is there.
template <class Visit>
void for_each_part(Context& context, DeviceLayer& layer, Range positions, int64_t most,
                   const Visit& visit) {
  const int64_t step = std::max<int64_t>(1, std::min(most, layer.most_keys));
  for (int64_t begin = positions.begin; begin < positions.end; begin += step) {
    const Range part{begin, std::min(positions.end, begin + step)};
    context.store.show_keys(layer, part, context.compute);
    visit(part);
  }
}

/// Calls work(Type()) with the operand type of a layer; see tiles.hpp.
template <class Bfloat16, class Float16, class Float32, class Work>
void with_types(ElementType type, const Work& work) {
  if (type == ElementType::bfloat16)
    work(Bfloat16());
  else if (type == ElementType::float16)
    work(Float16());
  else
    work(Float32());
}

}  // namespace kvsim::cuda
