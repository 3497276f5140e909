#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "analysis/dataset.hpp"
#include "io/trace_reader.hpp"
#include "run/study/study_plan.hpp"
#include "run/trace/trace_files.hpp"
#include "sim/policy/policy_run.hpp"
#include "sim/replay/layer_replay.hpp"

namespace kvsim {

class LayersAhead;
class StudyMeasures;

/// Seconds per phase of a run.
struct PhaseTimes {
  double read = 0;   ///< waiting for the trace; reading ahead overlaps the rest
  double score = 0;  ///< weights of the entries' values included
  double rank = 0;   ///< and allocate, and select
  double replay = 0;
  double flops = 0;    ///< of the fused replay's products: see PrefillReplay::flops
  double project = 0;  ///< through W_O
  double measure = 0;  ///< everything else that fills the results
};

struct StudyHooks {
  std::function<void(const std::string&)> message;  ///< whole sentences for the user
  /// done in [0, 1] of what there was to do
  std::function<void(double done, const std::string&)> progress;
};

/// One trace x policies x budgets: reads layer by layer, selects, replays and measures.
class Study {
 public:
  /// Everything that can be refused before any work is refused here: see plan_study() and
  /// check_study(). `reader` must outlive the study.
  Study(const TraceReader& reader, StudyOptions options, StudyHooks hooks = {});
  ~Study();

  Dataset run(Backend& backend);
  const PhaseTimes& times() const { return times_; }

 private:
  bool needs_survey() const;
  void survey_layers(LayersAhead& ahead, Backend& backend);
  void replay_layers(LayersAhead& ahead, Backend& backend);
  LayerTrace next(LayersAhead& ahead);
  void survey(Backend& backend, const LayerTrace& layer);
  void run_layer(LayerWork& work, int64_t layer);
  void say_progress(const std::string& what);

  const TraceReader& reader_;
  StudyHooks hooks_;
  TraceFiles files_;
  StudyPlan plan_;
  std::unique_ptr<StudyMeasures> measures_;
  std::unique_ptr<PolicyRun> policies_;  ///< of the user's records, then of those for measures
  std::unique_ptr<PeriodicPolicies> periodic_;    ///< the same records at later compressions
  std::map<int, ProjectedNorms> surveyed_norms_;  ///< by layer, until it is replayed
  int64_t surveyed_values_ = 0;                   ///< in all that were stored
  PhaseTimes times_;
  int64_t passes_done_ = 0;  ///< over one layer
  int64_t passes_ = 0;       ///< to be done
};

}  // namespace kvsim
