#include "sim/backend/cuda/context.hpp"

#include <cstring>

#include "sim/core/parallel.hpp"

namespace kvsim::cuda {
namespace {

constexpr int64_t kPieceBytes = int64_t{8} << 20;
constexpr int64_t kRunBytes = int64_t{256} << 10;  // that one thread copies

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
      std::memcpy(to + piece * kPieceBytes + begin, staged + begin,
                  static_cast<size_t>(end - begin));
    });
  }
}

namespace {

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

}  // namespace

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
          std::memset(at, 0, static_cast<size_t>(row_bytes));
      }
    });
    KVSIM_CUDA_CHECK(cudaMemcpyAsync(to.data() + first * row_bytes, staged,
                                     static_cast<size_t>(count * row_bytes), cudaMemcpyHostToDevice,
                                     copies_));
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

}  // namespace kvsim::cuda
