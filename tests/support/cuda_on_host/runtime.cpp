// Memory, streams and events of the host runtime, and its cuBLAS.
#include <Eigen/Dense>
#include <cstdlib>
#include <deque>
#include <mutex>

#include "sim/core/prelude.hpp"
#include "tests/support/cuda_on_host/cublas_v2.h"
#include "tests/support/cuda_on_host/cuda_runtime.h"
#include "tests/support/cuda_on_host/guard.hpp"

namespace cuda_on_host {

/// Work that waits; `done` counts what was done since the stream was made.
struct Stream {
  std::deque<std::function<void()>> work;
  uint64_t done = 0;
  bool busy = false;
  uint64_t end() const { return done + work.size(); }
};
struct Event {
  Stream* stream = nullptr;
  uint64_t at = 0;
};

namespace {

struct Allocation {
  std::unique_ptr<unsigned char[]> memory;
  size_t bytes;
};
/// One thread at a time; work may ask for more work to be done.
std::recursive_mutex turn;
using Turn = std::lock_guard<std::recursive_mutex>;

std::map<void*, Allocation> device_memory;
std::vector<Stream*> streams;
size_t memory_size = size_t{1} << 33;
size_t in_use = 0;

void check_guards() {
  for (const auto& [start, allocation] : device_memory) {
    const unsigned char* const all = allocation.memory.get();
    const unsigned char* const after = static_cast<unsigned char*>(start) + allocation.bytes;
    const auto intact = [](const unsigned char* begin, const unsigned char* end) {
      return std::all_of(begin, end, [](unsigned char byte) { return byte == kPoison; });
    };
    if (!intact(all, static_cast<unsigned char*>(start)) || !intact(after, after + kGuard))
      throw std::logic_error("device memory was written beyond its end");
  }
}

void do_until(Stream& stream, uint64_t end) {
  const Turn mine(turn);
  if (stream.busy) throw std::logic_error("streams wait for each other");
  stream.busy = true;
  while (stream.done < end && !stream.work.empty()) {
    const auto work = std::move(stream.work.front());
    stream.work.pop_front();
    ++stream.done;
    try {
      work();
    } catch (...) {
      stream.busy = false;
      throw;
    }
  }
  stream.busy = false;
}

void do_everything() {
  const Turn mine(turn);
  for (Stream* const stream : streams) do_until(*stream, stream->end());
  check_guards();
}

}  // namespace

void enqueue(Stream* stream, std::function<void()> work) {
  const Turn mine(turn);
  if (stream == nullptr) throw std::logic_error("the default stream is not used here");
  stream->work.push_back(std::move(work));
}
void set_memory(size_t bytes) { memory_size = bytes; }
size_t bytes_in_use() { return in_use; }

}  // namespace cuda_on_host

using namespace cuda_on_host;

const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaErrorMemoryAllocation ? "out of memory" : "an error";
}
cudaError_t cudaGetLastError() { return cudaSuccess; }
cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int) { return cudaSuccess; }
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  *properties = {"kernels on the host", memory_size, size_t{227} << 10, 9, 0, 4};
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = 13000;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = 13000;
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  *total = memory_size;
  *free = memory_size - std::min(memory_size, in_use);
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** memory, size_t bytes) {
  const Turn mine(turn);
  if (in_use + bytes > memory_size) return cudaErrorMemoryAllocation;
  in_use += bytes;
  Allocation allocation{std::make_unique_for_overwrite<unsigned char[]>(bytes + 2 * kGuard + 256),
                        bytes};
  std::memset(allocation.memory.get(), kPoison, bytes + 2 * kGuard + 256);
  const uintptr_t start = reinterpret_cast<uintptr_t>(allocation.memory.get()) + kGuard;
  *memory = reinterpret_cast<void*>((start + 255) / 256 * 256);
  device_memory.emplace(*memory, std::move(allocation));
  return cudaSuccess;
}

cudaError_t cudaFree(void* memory) {
  const Turn mine(turn);
  if (memory == nullptr) return cudaSuccess;
  try {  // what goes wrong here belongs to an earlier call, as on a device
    do_everything();
  } catch (const std::exception&) {
  }
  const auto at = device_memory.find(memory);
  if (at == device_memory.end()) return cudaErrorInvalidValue;
  in_use -= at->second.bytes;
  device_memory.erase(at);
  return cudaSuccess;
}

cudaError_t cudaMallocHost(void** memory, size_t bytes) {
  *memory = std::malloc(bytes);
  if (*memory == nullptr) return cudaErrorMemoryAllocation;
  std::memset(*memory, kPoison, bytes);
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* memory) {
  const Turn mine(turn);
  try {
    do_everything();
  } catch (const std::exception&) {
  }
  std::free(memory);
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind,
                            cudaStream_t stream) {
  enqueue(stream, [=] { std::memcpy(to, from, bytes); });
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  enqueue(stream, [=] { std::memset(to, value, bytes); });
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  const Turn mine(turn);
  *stream = new Stream;
  streams.push_back(*stream);
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  const Turn mine(turn);
  do_until(*stream, stream->end());
  check_guards();
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  const Turn mine(turn);
  stream->work.clear();
  std::erase(streams, stream);
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = new Event;
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  const Turn mine(turn);
  *event = {stream, stream->end()};
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  const Turn mine(turn);
  if (event->stream != nullptr) do_until(*event->stream, event->at);
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  enqueue(stream, [recorded = *event, stream] {
    if (recorded.stream != nullptr && recorded.stream != stream)
      do_until(*recorded.stream, recorded.at);
  });
  return cudaSuccess;
}

struct cublasContext {
  cudaStream_t stream = nullptr;
};

cublasStatus_t cublasCreate(cublasHandle_t* handle) {
  *handle = new cublasContext;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasDestroy(cublasHandle_t handle) {
  delete handle;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasSetStream(cublasHandle_t handle, cudaStream_t stream) {
  handle->stream = stream;
  return CUBLAS_STATUS_SUCCESS;
}
const char* cublasGetStatusString(cublasStatus_t) { return "an error"; }

namespace {

template <class T>
void multiply(cublasOperation_t ta, cublasOperation_t tb, int m, int n, int k, T alpha, const T* a,
              int lda, const T* b, int ldb, T beta, T* c, int ldc) {
  using Matrix = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic>;
  using Stride = Eigen::OuterStride<>;
  using View = Eigen::Map<const Matrix, 0, Stride>;
  const View x(a, ta == CUBLAS_OP_N ? m : k, ta == CUBLAS_OP_N ? k : m, Stride(lda));
  const View y(b, tb == CUBLAS_OP_N ? k : n, tb == CUBLAS_OP_N ? n : k, Stride(ldb));
  Eigen::Map<Matrix, 0, Stride> z(c, m, n, Stride(ldc));
  const Matrix left = ta == CUBLAS_OP_N ? Matrix(x) : Matrix(x.transpose());
  const Matrix right = tb == CUBLAS_OP_N ? Matrix(y) : Matrix(y.transpose());
  const Matrix product = alpha * (left * right);
  z = beta == T(0) ? product : Matrix(product + beta * z);  // c is not read when beta is 0
}

}  // namespace

cublasStatus_t cublasSgemm(cublasHandle_t handle, cublasOperation_t ta, cublasOperation_t tb, int m,
                           int n, int k, const float* alpha, const float* a, int lda,
                           const float* b, int ldb, const float* beta, float* c, int ldc) {
  enqueue(handle->stream,
          [=, x = *alpha, y = *beta] { multiply(ta, tb, m, n, k, x, a, lda, b, ldb, y, c, ldc); });
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasDgemmStridedBatched(cublasHandle_t handle, cublasOperation_t ta,
                                         cublasOperation_t tb, int m, int n, int k,
                                         const double* alpha, const double* a, int lda,
                                         long long stride_a, const double* b, int ldb,
                                         long long stride_b, const double* beta, double* c, int ldc,
                                         long long stride_c, int count) {
  enqueue(handle->stream, [=, x = *alpha, y = *beta] {
    for (int i = 0; i < count; ++i)
      multiply(ta, tb, m, n, k, x, a + i * stride_a, lda, b + i * stride_b, ldb, y,
               c + i * stride_c, ldc);
  });
  return CUBLAS_STATUS_SUCCESS;
}
