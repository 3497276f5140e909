#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "analysis/dataset.hpp"
#include "io/trace_reader.hpp"
#include "sim/backend/backend.hpp"

namespace kvsim {

/// One cell of a results file, by its indices there.
struct ExplainedCell {
  int64_t policy = 0;
  int64_t budget = 0;
  int64_t layer = 0;
  int64_t step = 0;
};

/// Policy, budget and step of the largest stream error, as `replay` names them, and there the layer
/// with the least retained importance. Where no stream error is defined, retained importance
/// chooses all. An index >= 0 in `fixed` is kept as it is. NaN cells do not count; none defined is
/// bad data, and so is a file without `kept_mask`.
ExplainedCell worst_cell(const Dataset& results, const std::string& path,
                         const ExplainedCell& fixed);

/// Meaning of one prompt entry at one step. Shares are of the importance of all prompt entries,
/// pooled over query heads (metrics.md 1).
struct ExplainedToken {
  int64_t position = 0;
  double importance = 0;  ///< share of the importance that falls on it
  double lost = 0;        ///< the part of it in heads that did not keep it
  int kept_heads = 0;     ///< heads that kept it (KV heads; query heads with granularity=query)
  int merged_heads = 0;   ///< heads where it is part of another entry's slot
  int worst_head = -1;    ///< head in which most was lost; -1: nothing was
  double score = 0;       ///< the score it had there; NaN: not scored (protected, or no scores)
  int64_t rank = 0;       ///< 1 = highest among the scored entries of that head; 0: not scored
  int64_t ranked = 0;     ///< entries that were scored there
};

struct Explanation {
  int heads = 0;  ///< owners of kept sets
  bool per_query_head = false;
  double retained = 0;                 ///< of the prompt at this step; as `retained_importance`
  double recorded = 0;                 ///< what the results file says (scope of its run)
  std::vector<ExplainedToken> tokens;  ///< [n] by position
};

/// Recomputes the full cache's importance at the step and sets it beside what the policy kept.
/// Scores are those of the record's stages in this layer, before any comparison across layers.
Explanation explain(const Dataset& results, const TraceReader& reader, const ExplainedCell& cell,
                    Backend& backend);

/// Positions of the tokens that lost most, most first; only tokens that lost something.
std::vector<int64_t> most_lost(const Explanation& explanation, int64_t count);

}  // namespace kvsim
