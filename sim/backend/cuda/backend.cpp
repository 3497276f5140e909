// The CUDA backend: finds the device, and brings data there and back.
#include <fmt/format.h>

#include "sim/backend/cuda/context.hpp"
#include "sim/backend/cuda_backend.hpp"

namespace kvsim::cuda {
namespace {

constexpr int64_t kPieceBytes = int64_t{8} << 20;
constexpr int64_t kRunBytes = int64_t{256} << 10;  // that one thread copies

constexpr int64_t kUploadBytes = int64_t{16} << 20;

ElementType common_type(const LayerTrace& layer) {
  for (const Tensor* const tensor : {&layer.q, &layer.v, &layer.wo})
    if (!tensor->empty() && tensor->type() != layer.k.type()) return ElementType::float32;
  return layer.k.type();
}

/// One row of a tensor in the device's type, zeros beyond its columns.
void write_row(const Tensor& tensor, ElementType type, int64_t a, int64_t b, int64_t columns,
               std::byte* to) {
  const size_t size = element_size(type);
  const size_t used = static_cast<size_t>(tensor.dim(2)) * size;
  if (tensor.type() == type)
    std::memcpy(to, tensor.row(a, b), used);
  else
    tensor.read(a, b, b + 1, reinterpret_cast<float*>(to));
  std::memset(to + used, 0, static_cast<size_t>(columns) * size - used);
}

constexpr int64_t kLeastMemory = int64_t{512} << 20;
constexpr int kLeastMajor = 8;  // copies to shared memory, bfloat16 and tf32 in tensor cores

[[noreturn]] void refuse(const char* what, std::string found = "", std::string expected = "") {
  throw Error(Fault::failure, {what, "CUDA", std::move(found), std::move(expected),
                               "--backend cpu works everywhere"});
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

}  // namespace

void Downloads::bring_bytes(std::byte* to, const std::byte* from, int64_t bytes,
                            const Stream& stream) {
  const int64_t count = (bytes + kPieceBytes - 1) / kPieceBytes;
  const auto size = [bytes](int64_t piece) {
    return std::min(kPieceBytes, bytes - piece * kPieceBytes);
  };
  for (int64_t sent = 0, piece = 0; piece < count; ++piece) {
    for (; sent < std::min(count, piece + kPieces); ++sent) {
      download(pieces_[sent % kPieces].reserve(kPieceBytes), from + sent * kPieceBytes, size(sent),
               stream);
      there_[sent % kPieces].record(stream);
    }
    there_[piece % kPieces].wait();
    const std::byte* const staged = pieces_[piece % kPieces].data();
    parallel_for((size(piece) + kRunBytes - 1) / kRunBytes, [&](int64_t run) {
      const int64_t begin = run * kRunBytes, end = std::min(size(piece), begin + kRunBytes);
      std::memcpy(to + piece * kPieceBytes + begin, staged + begin, end - begin);
    });
  }
}

/// Rows of all slices of a tensor, through pinned memory: the host fills one piece while another
/// is on its way.
void LayerStore::copy(const Tensor& tensor, ElementType type, Range rows, int64_t padded_rows,
                      int64_t columns, DeviceBuffer<std::byte>& to) {
  const int64_t row_bytes = columns * static_cast<int64_t>(element_size(type));
  const int64_t all = tensor.dim(0) * padded_rows;
  to.reserve(std::max<int64_t>(all * row_bytes, 1));
  const int64_t step = std::max<int64_t>(1, kUploadBytes / std::max<int64_t>(row_bytes, 1));
  for (int64_t first = 0; first < all; first += step) {
    const int64_t count = std::min(step, all - first);
    const int piece = next_piece_;
    next_piece_ = (next_piece_ + 1) % kPieces;
    sent_[piece].wait();
    std::byte* const staged = pieces_[piece].reserve(std::max(kUploadBytes, row_bytes));
    constexpr int64_t kRun = 256;  // rows that one thread copies
    parallel_for((count + kRun - 1) / kRun, [&](int64_t run) {
      for (int64_t i = run * kRun; i < std::min(count, (run + 1) * kRun); ++i) {
        const int64_t slice = (first + i) / padded_rows, row = (first + i) % padded_rows;
        std::byte* const at = staged + i * row_bytes;
        if (row < rows.size())
          write_row(tensor, type, slice, rows.begin + row, columns, at);
        else
          std::memset(at, 0, row_bytes);
      }
    });
    KVSIM_CUDA_CHECK(cudaMemcpyAsync(to.data() + first * row_bytes, staged, count * row_bytes,
                                     cudaMemcpyHostToDevice, copies_));
    sent_[piece].record(copies_);
  }
}

void LayerStore::bring_keys(DeviceLayer& to, Range keys) {
  copy(to.k, to.type, keys, keys.size(), to.depth, to.device_keys);
  copy(to.v, to.type, keys, keys.size(), to.columns, to.device_values);
  to.keys = keys;
  to.ready.record(copies_);
}

void LayerStore::bring(DeviceLayer& to, const LayerTrace& layer) {
  to.q = layer.q, to.k = layer.k, to.v = layer.v, to.wo = layer.wo;
  to.type = common_type(layer);
  to.depth = padded(layer.k.dim(2));
  to.columns = padded(layer.v.dim(2));
  to.width = padded(layer.wo.dim(2));
  const int64_t positions = layer.k.dim(1);
  const int64_t per_key = layer.k.dim(0) * (to.depth + to.columns) *
                          static_cast<int64_t>(element_size(to.type));
  to.most_keys = keys_together(memory_, per_key, positions);
  to.keys = {0, 0};
  copy(to.q, to.type, {0, layer.q.dim(1)}, layer.q.dim(1), to.depth, to.queries);
  if (!to.wo.empty()) copy(to.wo, to.type, {0, layer.wo.dim(1)}, to.columns, to.width, to.output);
  to.ready.record(copies_);
  if (to.most_keys == positions) bring_keys(to, {0, positions});
}

DeviceLayer& LayerStore::get(const LayerTrace& layer, const Stream& compute) {
  // Only verbs change which layer is in work, one at a time: those of the layer in work need not
  // wait until the next layer was brought.
  if (!layers_[current_].is(layer)) {
    const std::lock_guard lock(access_);
    compute.wait();  // nothing reads the memory that is about to be overwritten
    layers_[current_].forget();
    current_ = 1 - current_;
    waiting_ = false;
    if (!layers_[current_].is(layer)) bring(layers_[current_], layer);
  }
  layers_[current_].ready.hold(compute);
  return layers_[current_];
}

void LayerStore::show_keys(DeviceLayer& layer, Range keys, const Stream& compute) {
  if (keys.begin >= layer.keys.begin && keys.end <= layer.keys.end) return;
  const std::lock_guard lock(access_);
  compute.wait();
  bring_keys(layer, keys);
  layer.ready.hold(compute);
}

void LayerStore::prefetch(const LayerTrace& layer) {
  const std::lock_guard lock(access_);
  DeviceLayer& spare = layers_[1 - current_];
  if (waiting_ || layers_[current_].is(layer)) return;
  if (!spare.is(layer)) bring(spare, layer);
  waiting_ = true;
}

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

CudaBackend::CudaBackend(const cudaDeviceProp& properties, int64_t memory) : context_(memory) {
  context_.device = properties.name;
  context_.shared_memory = static_cast<int64_t>(properties.sharedMemPerBlockOptin);
}

void CudaBackend::begin(const LayerTrace& layer) {
  const std::lock_guard lock(context_.verb);
  context_.store.get(layer, context_.compute);
}

void CudaBackend::read_outputs(const float* delta, int64_t count, float* out) {
  const std::lock_guard lock(context_.verb);
  if (!context_.replay.holds(delta)) {
    std::copy_n(delta, count, out);
    return;
  }
  download(out, delta, count, context_.compute);
  context_.compute.wait();
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
