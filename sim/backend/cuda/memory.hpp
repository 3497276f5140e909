#pragma once
// Owners of device memory, pinned memory, streams and events.

#include "sim/backend/cuda/check.hpp"
#include "sim/backend/cuda/memory_plan.hpp"
#include "sim/core/prelude.hpp"

namespace kvsim::cuda {

class Stream {
 public:
  Stream() { KVSIM_CUDA_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }
  ~Stream() { cudaStreamDestroy(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  operator cudaStream_t() const { return stream_; }
  void wait() const { KVSIM_CUDA_CHECK(cudaStreamSynchronize(stream_)); }

 private:
  cudaStream_t stream_ = nullptr;
};

class Event {
 public:
  Event() { KVSIM_CUDA_CHECK(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming)); }
  ~Event() { cudaEventDestroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  void record(cudaStream_t stream) { KVSIM_CUDA_CHECK(cudaEventRecord(event_, stream)); }
  void wait() const { KVSIM_CUDA_CHECK(cudaEventSynchronize(event_)); }
  /// Makes work that is added to `stream` from now on wait for the event.
  void hold(cudaStream_t stream) const { KVSIM_CUDA_CHECK(cudaStreamWaitEvent(stream, event_, 0)); }

 private:
  cudaEvent_t event_ = nullptr;
};

/// Uninitialised memory that grows; what was in it is lost then.
template <class T, bool kPinned>
class Buffer {
 public:
  Buffer() = default;
  ~Buffer() { release(); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  T* reserve(int64_t count) {
    if (count <= size_) return data_;
    release();
    void* memory = nullptr;
    const size_t bytes = static_cast<size_t>(count) * sizeof(T);
    if constexpr (kPinned)
      KVSIM_CUDA_CHECK(cudaMallocHost(&memory, bytes));
    else
      KVSIM_CUDA_CHECK(cudaMalloc(&memory, bytes));
    data_ = static_cast<T*>(memory);
    size_ = count;
    return data_;
  }
  void release() {
    if (kPinned)
      cudaFreeHost(data_);
    else
      cudaFree(data_);
    data_ = nullptr;
    size_ = 0;
  }
  T* data() const { return data_; }
  int64_t size() const { return size_; }

 private:
  T* data_ = nullptr;
  int64_t size_ = 0;
};
template <class T>
using DeviceBuffer = Buffer<T, false>;
template <class T>
using PinnedBuffer = Buffer<T, true>;

/// Copies tables to the device and waits until they are there. Returns the device's address.
template <class T>
const T* upload(DeviceBuffer<T>& buffer, const T* from, int64_t count, cudaStream_t stream) {
  T* const to = buffer.reserve(std::max<int64_t>(1, count));
  if (count == 0) return to;
  KVSIM_CUDA_CHECK(cudaMemcpyAsync(to, from, static_cast<size_t>(count) * sizeof(T),
                                   cudaMemcpyHostToDevice, stream));
  KVSIM_CUDA_CHECK(cudaStreamSynchronize(stream));
  return to;
}
template <class T>
const T* upload(DeviceBuffer<T>& buffer, const std::vector<T>& values, cudaStream_t stream) {
  return upload(buffer, values.data(), std::ssize(values), stream);
}

/// Copies pinned memory, which must stay until the stream was waited for. Returns `to`.
template <class T>
const T* upload_pinned(T* to, const T* from, int64_t count, cudaStream_t stream) {
  KVSIM_CUDA_CHECK(cudaMemcpyAsync(to, from, static_cast<size_t>(count) * sizeof(T),
                                   cudaMemcpyHostToDevice, stream));
  return to;
}

/// Copies to memory of the host, fastest if it is pinned; there after the stream was waited for.
template <class T>
void download(T* to, const T* from, int64_t count, cudaStream_t stream) {
  if (count == 0) return;
  KVSIM_CUDA_CHECK(cudaMemcpyAsync(to, from, static_cast<size_t>(count) * sizeof(T),
                                   cudaMemcpyDeviceToHost, stream));
}

}  // namespace kvsim::cuda
