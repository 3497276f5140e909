#pragma once
#include <memory>

#include "sim/core/layer_trace.hpp"

namespace kvsim {

/// What a trace would say if the tokens of one part of a probe came after its prompt: entries n..
/// are theirs, in their order. A probe without keys sees the prompt alone; all its queries then
/// stand at n-1. `with_prompt`: the stored queries of the prompt, too, else those of the part
/// alone.
TraceInfo probe_info(const TraceInfo& info, int probe, size_t part, bool with_prompt);

/// The same of a layer whose probe has been read; `info` as above. Elements are shared where no
/// copy is needed; nothing is known of recorded outputs.
LayerTrace probe_layer(const LayerTrace& layer, const TraceInfo& info, int probe, size_t part,
                       bool with_prompt);

/// Both, with the queries of the part alone.
struct ProbeView {
  TraceInfo info;
  LayerTrace layer;
};
std::unique_ptr<ProbeView> probe_view(const LayerTrace& layer, int probe, size_t part);

}  // namespace kvsim
