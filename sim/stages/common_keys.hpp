#pragma once
#include "sim/stages/parameter.hpp"

/// Parameters that no single stage owns (policies.md 2).
namespace kvsim {
namespace keys {
extern const Declare granularity, rounding, tie, skip_layers, positions;
extern const Declare order, sinks, recent, allocate_score;  // in the files of their stages
}  // namespace keys

// Words in the order of the declarations.
enum class Granularity { kv, query };
enum class Rounding { exact, kvpress };
enum class Tie { raw, recent };
enum class Positions { absolute, cache };
enum class AllocateScore { final_score, unweighted };

/// Query heads own the kept sets; else KV heads do.
inline bool per_query_head(const Settings& settings) {
  return settings.word<Granularity>(keys::granularity) == Granularity::query;
}
inline bool rounds_like_kvpress(const Settings& settings) {
  return settings.word<Rounding>(keys::rounding) == Rounding::kvpress;
}
inline bool ties_by_raw(const Settings& settings) {
  return settings.word<Tie>(keys::tie) == Tie::raw;
}
/// Kept keys are turned to where they stand in the cache.
inline bool moves_positions(const Settings& settings) {
  return settings.word<Positions>(keys::positions) == Positions::cache;
}

}  // namespace kvsim
