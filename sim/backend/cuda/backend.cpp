// The CUDA backend: finds the device, and hands every verb to its file.
#include <fmt/format.h>

#include <algorithm>

#include "sim/backend/cuda/verbs.hpp"
#include "sim/backend/cuda_backend.hpp"
#include "sim/core/error.hpp"

namespace kvsim::cuda {
namespace {

constexpr int64_t kLeastMemory = int64_t{512} << 20;
constexpr int64_t kLeastRows = 16;  // attending to slots: fewer are done before slots are brought
constexpr int kLeastMajor = 8;      // copies to shared memory, bfloat16 and tf32 in tensor cores

[[noreturn]] void refuse(const char* what, std::string found = "", std::string expected = "") {
  throw Error(Fault::failure, {.what = what,
                               .where = "CUDA",
                               .found = std::move(found),
                               .expected = std::move(expected),
                               .hint = "--backend cpu works everywhere"});
}

std::string version_text(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

/// The first device, or one line that says why not.
cudaDeviceProp open_device() {
  int driver = 0, runtime = 0, count = 0;
  if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0)
    refuse("no device", "no CUDA driver");
  KVSIM_CUDA_CHECK(cudaRuntimeGetVersion(&runtime));
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaErrorInsufficientDriver)
    refuse("the driver is too old", "a driver for CUDA " + version_text(driver),
           "one for CUDA " + version_text(runtime));
  if (error == cudaErrorNoDevice || (error == cudaSuccess && count == 0)) refuse("no device");
  KVSIM_CUDA_CHECK(error);
  KVSIM_CUDA_CHECK(cudaSetDevice(0));
  cudaDeviceProp properties{};
  KVSIM_CUDA_CHECK(cudaGetDeviceProperties(&properties, 0));
  if (properties.major < kLeastMajor)
    refuse("the device is too old",
           fmt::format("{}, compute capability {}.{}", properties.name, properties.major,
                       properties.minor),
           fmt::format("{}.0 or later", kLeastMajor));
  return properties;
}

class CudaBackend : public PrefetchingBackend {
 public:
  CudaBackend(const cudaDeviceProp& properties, int64_t memory) : context_(memory) {
    context_.device = properties.name;
    context_.shared_memory = static_cast<int64_t>(properties.sharedMemPerBlockOptin);
  }

  std::string name() const override { return "cuda"; }
  std::string device() const override { return context_.device; }
  int64_t values_at_once() const override { return int64_t{1} << 24; }
  void begin(const LayerTrace& layer) override {
    const std::lock_guard lock(context_.verb);
    context_.store.get(layer, context_.compute);
  }
  void prefetch(const LayerTrace& layer) override { context_.store.prefetch(layer); }

  void attention(const LayerTrace& layer, const AttentionRequest& request,
                 AttentionBlock& block) override {
    const std::lock_guard lock(context_.verb);
    cuda::attention(context_, layer, request, block);
  }
  std::vector<Table<double>> attention_sums(const LayerTrace& layer,
                                            const AttentionSumRequest& request) override {
    const std::lock_guard lock(context_.verb);
    return cuda::attention_sums(context_, layer, request);
  }
  void attend(const LayerTrace& layer, std::span<const SlotRows> owners) override {
    for (const SlotRows& owner : owners) {
      if (owner.heads * owner.rows < kLeastRows) {
        host_->attend(layer, {&owner, 1});
        continue;
      }
      const std::lock_guard lock(context_.verb);
      cuda::attend(context_, layer, {&owner, 1});
    }
  }
  void output_metrics(const LayerTrace& layer, std::span<const HeadPair> pairs,
                      Range entries) override {
    const std::lock_guard lock(context_.verb);
    cuda::output_metrics(context_, layer, pairs, entries);
  }
  void value_products(const LayerTrace& layer, int kv_head, const double* y, int64_t rows,
                      Range entries, double* out) override {
    const std::lock_guard lock(context_.verb);
    cuda::value_products(context_, layer, kv_head, y, rows, entries, out);
  }
  void projected_norms(const LayerTrace& layer, Norm norm, Range entries, float* out) override {
    const std::lock_guard lock(context_.verb);
    cuda::projected_norms(context_, layer, norm, entries, out);
  }
  void value_norms(const LayerTrace& layer, Norm norm, Range entries, float* out) override {
    const std::lock_guard lock(context_.verb);
    cuda::value_norms(context_, layer, norm, entries, out);
  }
  /// The sink may call other verbs.
  void replay(const LayerTrace& layer, const ReplayRequest& request,
              const std::function<void(const ReplayBlock&)>& sink) override {
    cuda::replay(context_, layer, request, sink);
  }
  void read_outputs(const float* delta, int64_t count, float* out) override {
    const std::lock_guard lock(context_.verb);
    if (!context_.replay.holds(delta)) {
      std::copy_n(delta, count, out);
      return;
    }
    download(out, delta, count, context_.compute);
    context_.compute.wait();
  }
  std::unique_ptr<Projection> projection(const LayerTrace& layer) override {
    return cuda::projection(context_, layer);
  }

 private:
  Context context_;
  std::unique_ptr<Backend> host_ = make_cpu_backend();
};

}  // namespace

void call_failed(const char* expression, const char* file, int line, const char* message,
                 bool memory) {
  cudaGetLastError();  // or the next launch would report it again
  const std::string call = std::string(expression).substr(0, std::string(expression).find('('));
  throw Error(Fault::failure,
              {.what = memory ? "too little memory on the device" : "a CUDA call failed",
               .where = fmt::format("CUDA, {} at {}:{}", call, file, line),
               .found = message,
               .hint = "--backend cpu works everywhere"});
}

void check_shared_memory(const Context& context, int64_t bytes, const LayerTrace& layer) {
  if (bytes <= context.shared_memory) return;
  refuse("heads too large for the device",
         fmt::format("head sizes {} and {}, which need {} KiB of shared memory per block",
                     layer.k.dim(2), layer.value_dim(), bytes >> 10),
         fmt::format("at most {} KiB", context.shared_memory >> 10));
}

/// The backend on the first device, with `memory` bytes of it.
std::unique_ptr<Backend> make_backend_with(int64_t memory) {
  return std::make_unique<CudaBackend>(open_device(), memory);
}

/// The backend on the first device; an Error of one line if there is none that will do.
std::unique_ptr<Backend> make_backend() {
  const cudaDeviceProp properties = open_device();
  size_t free = 0, total = 0;
  KVSIM_CUDA_CHECK(cudaMemGetInfo(&free, &total));
  // In steps, so that the size of chunks, and with it the last bits of results, do not follow every
  // small change of what other programs take.
  const int64_t memory = static_cast<int64_t>(free) / kLeastMemory * kLeastMemory;
  if (memory < kLeastMemory)
    refuse("too little memory on the device",
           fmt::format("{} MiB free of {}", free >> 20, properties.name),
           fmt::format("{} MiB", kLeastMemory >> 20));
  return std::make_unique<CudaBackend>(properties, memory);
}

}  // namespace kvsim::cuda
