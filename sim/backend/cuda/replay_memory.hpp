#pragma once
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
  ReplayBlock block;
};

}  // namespace kvsim::cuda
