#pragma once
#include <cstdint>
#include <vector>

#include "sim/core/layer_trace.hpp"

namespace kvsim {

/// Puts W* in the place of `layer.wo`, which `layer.path.wo` then holds as it was stored. Nothing
/// happens to a layer whose path is empty. A W* that is not finite is bad data.
void set_usual_output(LayerTrace& layer);

/// What a layer adds to the stream [D] by definition, in float64, from its heads' outputs z
/// [Hq][dv] at a stored query. `inner_root`, `outer_root`: where not null, the roots that were
/// divided by.
std::vector<double> added_to_stream(const LayerTrace& layer, int64_t query,
                                    const std::vector<double>& z, double* inner_root = nullptr,
                                    double* outer_root = nullptr);

}  // namespace kvsim
