#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "analysis/dataset.hpp"
#include "io/trace_reader.hpp"
#include "run/study/layer_replay.hpp"
#include "run/study/study_options.hpp"
#include "sim/policy/policy_run.hpp"

namespace kvsim {

class Archive;
class LayerStore;
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
  /// A run that goes on where an earlier one stopped: passes over a layer that are done, and all.
  std::function<void(int64_t done, int64_t all)> resumed;
};

/// One trace x policies x budgets: reads layer by layer, selects, replays and measures.
class Study {
 public:
  /// `reader` must outlive the study. Layers with a sliding window shorter than the trace are left
  /// out and named through hooks.message; none left is bad data.
  Study(const TraceReader& reader, StudyOptions options, StudyHooks hooks = {});
  ~Study();

  /// Everything that can be refused before any work is refused here.
  void check() const;

  /// Layers that `store` has are not worked on again, and it is given every layer that is finished.
  Dataset run(Backend& backend, LayerStore* store = nullptr);
  const PhaseTimes& times() const { return times_; }

 private:
  class Layers;  // reads ahead
  bool needs_survey() const;
  std::vector<int> layers_to_survey(LayerStore* store);
  size_t finished_layers(LayerStore* store);
  void exchange_survey(int layer, Archive& archive);
  void exchange_layer(int64_t layer, Archive& archive);
  void survey(Backend& backend, const LayerTrace& layer);
  void run_layer(LayerWork& work, int64_t layer);
  int64_t wo_steps() const;
  void say_progress(const std::string& what);

  const TraceReader& reader_;
  StudyOptions options_;
  StudyHooks hooks_;
  /// The HDF5 library serves one thread at a time: layers that are read ahead, and side files.
  std::mutex file_access_;
  std::unique_ptr<SideFiles> files_;
  std::unique_ptr<StudyMeasures> measures_;
  std::unique_ptr<PolicyRun> policies_;  ///< of the user's records, then of those for measures
  std::unique_ptr<PeriodicPolicies> periodic_;    ///< the same records at later compressions
  std::map<int, ProjectedNorms> surveyed_norms_;  ///< by layer, until it is replayed
  int64_t surveyed_values_ = 0;                   ///< in all that were stored
  PhaseTimes times_;
  int64_t passes_done_ = 0;  ///< over one layer, in this run
  int64_t passes_ = 0;       ///< to be done in this run
};

/// K of --wo-steps when the user gave none: all steps while projecting them costs at most a quarter
/// of a replay of usual size (or a fifth of a second), else fewer, but at least 16. Depends on the
/// shapes of the trace only, so that a record is measured at the same steps in every company.
int64_t default_wo_steps(const TraceInfo& info, int64_t value_dim);

}  // namespace kvsim
