#pragma once
#include "sim/backend/layer_work.hpp"
#include "sim/core/kept_sets.hpp"
#include "sim/stages/settings.hpp"

namespace kvsim {

/// Does some owner keep less than the prompt?
bool leaves_out_entries(const LayerWork& work, const KeptSets& kept);

/// Does the record change keys or values of what it kept of this layer?
bool changes_entries(const LayerWork& work, const KeptSets& kept, const Settings& settings);

/// Does the layer keep every entry as it is, at every later step? Then attention is that of the
/// full cache. (With everything kept, positions=cache moves nothing.)
bool leaves_cache_alone(const LayerWork& work, const KeptSets& kept, const Settings& settings);

}  // namespace kvsim
