#pragma once
// Device memory of verbs that are called many times per layer, kept from call to call: to allocate
// it anew would take longer than many a call, and wait for all that runs.
#include "sim/backend/cuda/rows.hpp"

namespace kvsim::cuda {

/// Of attention() and attention_sums().
struct RowMemory {
  Rows rows;
  DeviceBuffer<float> logits;      ///< [rows][positions that any row sees]
  DeviceBuffer<float> attention;   ///< [rows][columns]
  DeviceBuffer<float> maximum;
  DeviceBuffer<double> inverse, log_sum_exp;
  DeviceBuffer<float> sinks;
  DeviceBuffer<uint32_t> list;
  DeviceBuffer<WalkItem> items;
  DeviceBuffer<RowSums> states;
  DeviceBuffer<float> outputs, z;
  DeviceBuffer<double> weights, sums;
};

/// Of value_products() and value_forms().
struct ValueMemory {
  DeviceBuffer<double> wide, factor, products, forms;
};

}  // namespace kvsim::cuda
