#pragma once
// Device memory of verbs that are called many times per layer, kept from call to call: to allocate
// it anew would take longer than many a call, and wait for all that runs.
#include "sim/backend/cuda/rows.hpp"

namespace kvsim::cuda {

/// Of attention() and attention_sums().
struct RowMemory {
  Rows rows;
  DeviceBuffer<float> logits;     ///< [rows][positions that any row sees]
  DeviceBuffer<float> attention;  ///< [rows][columns]
  DeviceBuffer<float> maximum;
  DeviceBuffer<double> inverse, log_sum_exp;
  DeviceBuffer<float> sinks;
  DeviceBuffer<uint32_t> list;  ///< 0, 1, 2, ...
  DeviceBuffer<WalkItem> items;
  DeviceBuffer<RowSums> states;
  DeviceBuffer<float> outputs, z;
  DeviceBuffer<double> weights, bounds, sums;
};

/// Of attend().
struct SlotMemory {
  Rows rows;
  DeviceBuffer<float> keys, values, queries;  ///< of one owner
  DeviceBuffer<float> weights, sinks;
  DeviceBuffer<float> logits, attention;  ///< [rows][slots]
  DeviceBuffer<float> maximum, outputs;
  DeviceBuffer<double> inverse, log_sum_exp;
};

/// Of value_products() and output_metrics().
struct ValueMemory {
  DeviceBuffer<double> wide, factor, products, forms;
};

/// Of value_norms() and projected_norms().
struct NormMemory {
  DeviceBuffer<float> factors, norms;
  DeviceBuffer<double> sums;
};

/// Of the Projections, of which the weights and factors are that were asked for last.
struct ProjectionMemory {
  int64_t projections = 0;  ///< made so far: each has its number
  int64_t weights_of = 0, factors_of = 0;
  DeviceBuffer<float> weights;  ///< [Hq * columns][width] float32
  DeviceBuffer<float> factors;
  DeviceBuffer<float> rows, products;
  DeviceBuffer<double> sums;
  DeviceBuffer<int64_t> steps;
  PinnedBuffer<float> staged;
};

}  // namespace kvsim::cuda
