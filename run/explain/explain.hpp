#pragma once
#include "run/study/study.hpp"

namespace kvsim {

/// A record, and the records that replay it with other ways to aggregate over its window
/// (metrics.md 1, fragility): every row of the window alone, the maximum, and DefensiveKV.
struct FragilityGroup {
  std::string base;                  ///< canonical texts
  std::vector<std::string> singles;  ///< aggregate=single,single_row=0..m-1
  std::string max;                   ///< aggregate=max,group=max
  /// DefensiveKV's step in its own order (Algorithm 1): the same of attention alone, then the
  /// prior, and only then the norm, without which a prior that ties entries changes no choice.
  std::string defensive;
  std::string published;  ///< defensivekv:code with the record's window
};

/// Empty `singles` for records without a window of queries of known length.
FragilityGroup fragility_group(const Record& record);

/// The groups of all records that have one.
std::vector<FragilityGroup> fragility_groups(const std::vector<Record>& records);

/// Least, middle and largest value over the single rows.
struct Band {
  double low = 0;
  double middle = 0;
  double high = 0;
};

/// Stream error (NaN when it was not measured), and over layers the mean of the means of retained
/// importance, its worst, and the sum of outliers.
template <class Value>
struct FragilityMeasures {
  Value stream, mean, min, outliers;
};

/// One block of the summary.
struct FragilityRow {
  std::string base;
  std::string budget;
  FragilityMeasures<Band> single;  ///< over the single rows
  /// Name under which the record is compared.
  std::vector<std::pair<std::string, FragilityMeasures<double>>> others;
};

/// Per group and budget of a results file that holds all records of the groups.
std::vector<FragilityRow> fragility_rows(const Dataset& results,
                                         const std::vector<FragilityGroup>& groups);

// Parts of a page about results beside the results, all of them from the trace. Hooks have both.

/// All that the trace adds to the results: what the worst steps looked for, texts of the tokens
/// (`token_text`), and, where the results lack them, kept sets (`kept_mask`) and retained
/// importance per head, for which the record of the results is replayed once more. What is too
/// large or cannot be replayed is left out, with a message.
Dataset details_of(const Dataset& results, const TraceReader& reader, Backend& backend,
                   const StudyHooks& hooks);

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
