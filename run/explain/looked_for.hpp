#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "analysis/dataset.hpp"
#include "io/trace_reader.hpp"
#include "sim/backend/backend.hpp"

namespace kvsim {

/// Parts of a page about results beside the results, all of them from the trace.
struct DetailHooks {
  std::function<void(const std::string&)> message;                ///< whole sentences
  std::function<void(double done, const std::string&)> progress;  ///< done in [0, 1]
};

/// Positions of at most `count` steps, ascending: the worst of every policy and budget come first,
/// by stream error, or by retained importance (mean over layers) where that was not measured.
std::vector<int64_t> worst_steps(const Dataset& results, int64_t count);

/// The prompt entries of most importance at each of these steps, whatever a policy kept: the
/// variables `entry` (layer, step, rank; -1: none) and `share` (layer, head, step, rank): share of
/// the layer's importance over all prompt entries and query heads. Entries are chosen per layer,
/// pooled over its heads, most first.
Dataset looked_for(const Dataset& results, const TraceReader& reader,
                   const std::vector<int64_t>& steps, int64_t most, Backend& backend,
                   const DetailHooks& hooks);

/// All that the trace adds to the results: looked_for() at the worst steps, texts of the tokens
/// (`token_text`), and, where the results lack them, kept sets (`kept_mask`) and retained
/// importance per head, for which the record of the results is replayed once more. What is too
/// large or cannot be replayed is left out, with a message.
Dataset details_of(const Dataset& results, const TraceReader& reader, Backend& backend,
                   const DetailHooks& hooks);

}  // namespace kvsim
