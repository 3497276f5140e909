#pragma once
#include <functional>

#include "sim/backend/backend.hpp"
#include "sim/backend/cuda/finish.hpp"
#include "sim/backend/cuda/rows.hpp"

namespace kvsim::cuda {

/// Memory of the replay, kept from layer to layer.
struct ReplayMemory {
  Rows rows;
  DeviceBuffer<uint32_t> list;
  DeviceBuffer<WalkItem> items;
  DeviceBuffer<float> importance, sinks;
  DeviceBuffer<FinishPlan> plans;
  DeviceBuffer<uint8_t> everything;
  DeviceBuffer<RowSums> sums;
  DeviceBuffer<float> outputs, z, delta;
  DeviceBuffer<double> full, kept;
  PinnedBuffer<uint32_t> list_here;
  PinnedBuffer<double> sums_here;  ///< of the host: `full`, then `kept`
  PinnedBuffer<float> z_here;
  ReplayBlock block;

  /// Whether these are outputs that stayed on the device.
  bool holds(const float* x) const {
    return std::less_equal<>()(delta.data(), x) && std::less<>()(x, delta.data() + delta.size());
  }
};

}  // namespace kvsim::cuda
