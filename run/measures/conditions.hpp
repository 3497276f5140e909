#pragma once
#include <algorithm>

#include "run/measures/measure.hpp"
#include "sim/stages/common_keys.hpp"
#include "sim/stages/merge/merge.hpp"
#include "sim/stages/quantize/quantize.hpp"

namespace kvsim {

template <class Test>
bool any_record(const RunShape& run, Test test) {
  return std::ranges::any_of(run.options.records,
                             [&](const Record& record) { return test(record.settings); });
}

inline const Condition kAlways{"always", [](const RunShape&) { return true; }};
inline const Condition kResidualNorm{"the trace has `residual_norm`", [](const RunShape& run) {
                                       return run.info.has_residual_norm;
                                     }};
inline const Condition kSpans{"the trace has spans",
                              [](const RunShape& run) { return !run.spans.empty(); }};
inline const Condition kPerHead{"`--per-head`",
                                [](const RunShape& run) { return run.options.per_head; }};
inline const Condition kSaveKeep{"`--save-keep`",
                                 [](const RunShape& run) { return run.options.save_keep; }};
inline const Condition kQueryHeads{"a policy has `granularity=query`",
                                   [](const RunShape& run) {
  return any_record(run, [](const Settings& s) { return per_query_head(s); });
                                   }};
inline const Condition kQuantizes{"a policy quantises",
                                  [](const RunShape& run) {
  return any_record(run, [](const Settings& s) { return quantizer(s).changes_entries(); });
                                  }};
inline const Condition kMerges{"a policy merges",
                               [](const RunShape& run) {
  return any_record(run, [](const Settings& s) { return merges(s); });
                               }};

}  // namespace kvsim
