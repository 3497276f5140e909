#pragma once
#include "sim/backend/cuda/context.hpp"
#include "sim/backend/cuda/tiles.hpp"
#include "sim/backend/cuda/walk.hpp"

namespace kvsim::cuda {

/// Arguments that all walks over rows of a layer have in common; keys are those there when it runs.
inline Walk walk_of(const DeviceLayer& layer, const LayerTrace& trace, const RowTable& rows,
                    int64_t all_rows) {
  Walk walk{};
  walk.rows = rows;
  walk.all_rows = all_rows;
  walk.depth = static_cast<int>(layer.depth);
  walk.columns = static_cast<int>(layer.columns);
  walk.scale = static_cast<float>(trace.scale);
  walk.softcap = static_cast<float>(trace.softcap);
  return walk;
}

/// Runs a walk over the keys that are on the device, two stages of tiles if they fit.
inline void run_walk(Context& context, const DeviceLayer& layer, const LayerTrace& trace, Walk walk,
                     int64_t items, int64_t most_rows) {
  walk.queries = layer.queries.data();
  walk.keys = layer.device_keys.data();
  walk.values = layer.device_values.data();
  walk.key_rows = layer.keys.size();
  walk.first_position = layer.keys.begin;
  with_types<Bfloat16, Float16, Float32>(layer.type, [&](auto chosen) {
    using Type = decltype(chosen);
    walk.stages = 2;
    if (walk_memory<Type>(walk.depth, 2, walk.heads_per_tile) > context.shared_memory)
      walk.stages = 1;
    check_shared_memory(context, walk_memory<Type>(walk.depth, walk.stages, walk.heads_per_tile),
                        trace);
    launch_walk<Type>(walk, items, most_rows, context.compute);
  });
}

}  // namespace kvsim::cuda
