#pragma once
#include "analysis/memory_model.hpp"
#include "sim/backend/layer_work.hpp"
#include "sim/stages/settings.hpp"

namespace kvsim {

/// Adds what a layer's kept sets hold: rounded as the record says, with its votes and estimates.
void add_to_memory(const LayerWork& work, const KeptSets& kept, const Settings& settings,
                   int64_t element_bytes, const Growth& growth, MemoryModel& model);

}  // namespace kvsim
