#pragma once
#include <functional>
#include <string>
#include <vector>

#include "analysis/measure.hpp"
#include "analysis/span_tokens.hpp"
#include "analysis/study_options.hpp"
#include "io/trace_reader.hpp"
#include "sim/stages/side_files.hpp"

namespace kvsim {

/// Plan of a study: options and a trace put together, before any layer is read.
struct StudyPlan {
  StudyOptions options;           ///< no doubles; layers that are replayed; variables for metrics
  std::vector<SpanTokens> spans;  ///< of the results
  std::vector<Record> records;    ///< those of the options, then those replayed for measures only
  std::vector<int64_t> projected_steps;  ///< of the T later steps, those that go through W_O

  RunShape shape(const TraceInfo& info) const { return {info, options, spans}; }
};

/// Equal records, and budgets that keep the same share of the prompt, collapse to the first.
void take_doubles_out(StudyOptions& options, int64_t prompt_len);

/// Layers with a sliding window shorter than the trace are left out and named to `message`; none
/// left, or no later step, is bad data.
StudyPlan plan_study(const TraceReader& trace, StudyOptions options,
                     const std::function<void(const std::string&)>& message = nullptr);

/// Throws what a study would be refused for: it asks what the trace holds and reads no layer.
void check_study(const TraceReader& trace, const StudyPlan& plan, const SideFiles& files);
void check_study(const TraceReader& trace, const StudyOptions& options);

/// K of --wo-steps when the user gave none: all steps while projecting them costs at most a quarter
/// of a replay of usual size (or a fifth of a second), else fewer, but at least 16. Depends on the
/// shapes of the trace only, so that a record is measured at the same steps in every company.
int64_t default_wo_steps(const TraceInfo& info, int64_t value_dim);

}  // namespace kvsim
