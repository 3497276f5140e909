#pragma once
#include <mutex>

#include "sim/backend/cuda/memory.hpp"
#include "sim/core/array.hpp"
#include "sim/core/layer_trace.hpp"

namespace kvsim::cuda {

/// Rows on the device are whole steps of the tensor cores long, zeros beyond the tensor's columns.
constexpr int64_t kRowMultiple = 16;
constexpr int64_t padded(int64_t count) {
  return (count + kRowMultiple - 1) / kRowMultiple * kRowMultiple;
}

/// A layer in device memory. All tensors have one element type: that of the trace, or float32 if
/// the trace mixes types.
struct DeviceLayer {
  Tensor q, k, v, wo;  ///< the host's, which say whose layer this is
  ElementType type = ElementType::float32;
  int64_t depth = 0;                      ///< d, padded
  int64_t columns = 0;                    ///< dv, padded
  int64_t width = 0;                      ///< D, padded
  int64_t most_keys = 0;                  ///< positions whose keys and values fit at a time
  Range keys;                             ///< positions whose keys and values are there
  DeviceBuffer<std::byte> queries;        ///< [Hq][M][depth]
  DeviceBuffer<std::byte> device_keys;    ///< [Hkv][keys][depth]
  DeviceBuffer<std::byte> device_values;  ///< [Hkv][keys][columns]
  DeviceBuffer<std::byte> output;         ///< [Hq][columns][width]
  Event ready;

  bool is(const LayerTrace& layer) const {
    return !k.empty() && k.data() == layer.k.data() && q.data() == layer.q.data() &&
           v.data() == layer.v.data() && wo.data() == layer.wo.data();
  }
  void forget() { q = k = v = wo = Tensor(); }  ///< lets go of the host's memory
};

/// Brings layers to the device: the one in work, and the next one while that is worked on.
class LayerStore {
 public:
  /// `memory`: bytes of the device that may be used.
  explicit LayerStore(int64_t memory) : memory_(memory) {}

  /// The layer, brought now unless it is there. What is added to `compute` later finds it there.
  DeviceLayer& get(const LayerTrace& layer, const Stream& compute);
  /// Makes the keys and values of some positions be there, at most `most_keys` of them.
  void show_keys(DeviceLayer& layer, Range keys, const Stream& compute);
  /// Starts to bring a layer that `get` will ask for next. May run beside the verbs.
  void prefetch(const LayerTrace& layer);

 private:
  void bring(DeviceLayer& to, const LayerTrace& layer);
  void bring_keys(DeviceLayer& to, Range keys);
  void copy(const Tensor& tensor, ElementType type, Range rows, int64_t padded_rows,
            int64_t columns, DeviceBuffer<std::byte>& to);

  static constexpr int kPieces = 2;
  int64_t memory_;
  std::mutex access_;
  DeviceLayer layers_[2];
  int current_ = 0;
  bool waiting_ = false;  ///< the other one was brought ahead and not yet asked for
  Stream copies_;
  PinnedBuffer<std::byte> pieces_[kPieces];  ///< on their way
  Event sent_[kPieces];
  int next_piece_ = 0;
};

}  // namespace kvsim::cuda
