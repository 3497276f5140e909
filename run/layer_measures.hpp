#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "analysis/correlation.hpp"
#include "sim/replay/prefill.hpp"

namespace kvsim {

/// What one outcome of a layer's replay measured at each of the T later steps. NaN: undefined, or
/// not evaluated.
struct StepSeries {
  std::vector<double> importance;    ///< [T] retained, pooled over heads
  std::vector<double> attention;     ///< [T]
  std::vector<double> error;         ///< [T] norm of the change of the layer's output
  Table<double> importance_head;     ///< [Hq][T]; the three are empty unless asked for
  Table<double> attention_head;
  Table<double> error_head;          ///< norm of the change of each head's output after W_O
  std::vector<double> represented;   ///< [T] retained importance with merged entries counted in;
                                     ///< this and the next four only in runs that merge
  std::vector<double> dropped;       ///< [T] attention on dropped entries, mean over heads
  std::vector<double> sag;           ///< [T]
  std::vector<double> shift;         ///< [T]
  std::vector<double> defect;        ///< [T] nats
  std::vector<double> defects;       ///< of every head, merged slot and step
  Table<double> parts;               ///< [parts][T] retained importance within parts of the prompt
  std::vector<double> value_part;    ///< [T] this and the next empty unless asked for
  std::vector<double> mass_part;     ///< [T]
  std::vector<double> rounding;      ///< [T] norm of what quantising adds to the layer's output
  std::vector<Moments> kept_moments; ///< [T] of importance, all heads; per-step outcomes and
                                     ///< decoding only
  std::vector<Moments> all_moments;  ///< [T] this and the next while decoding only
  std::vector<double> entries;       ///< [T] pairs of head and entry in the scope
};

/// The full cache at each later step.
struct FullSeries {
  std::vector<double> output;         ///< [T] norm of the layer's output; NaN if not evaluated
  Table<double> output_head;          ///< [Hq][T], when asked for
  std::vector<double> importance;     ///< [T] of all entries in the scope prompt or all
  std::vector<double> later_share;    ///< [T] share of it on later entries; 0 in scope prompt
};

/// Measures one layer while it is replayed: give add() to the run() of the replay loops.
class LayerMeasures {
 public:
  struct Options {
    std::vector<int64_t> projected_steps;   ///< indices of the steps whose output error is wanted
    bool per_head = false;
    Scope scope = Scope::prompt;
    bool merges = false;                    ///< a policy of the run merges
    int64_t parts = 0;                      ///< of the prompt, measured apart
    bool slot_changes = false;              ///< value and mass parts are wanted
    bool rounding = false;                  ///< what quantising adds is wanted
  };
  LayerMeasures(LayerWork& work, size_t outcomes, Options options);

  void add(const StepBlock& block);

  const std::vector<StepSeries>& outcomes() const { return outcomes_; }
  const FullSeries& full() const { return full_; }
  double projection_seconds() const { return projection_seconds_; }

 private:
  void add_full(const ReplayBlock& block);
  void add_shares(const OutcomeBlock& view, int64_t first, int64_t steps);
  void add_merges(const OutcomeBlock& view, int64_t first, int64_t steps);
  void add_errors(const StepBlock& block);
  struct OutputSteps {
    int64_t stride = 0;           ///< outputs that the block holds of each head
    std::vector<int64_t> rows;    ///< numbers among them
    std::vector<int64_t> steps;   ///< 0..T-1
  };
  OutputSteps projected(const StepBlock& block) const;
  void add_rounding(const StepBlock& block, const OutputSteps& there);
  void add_moments(const OutcomeBlock& view, int64_t first);
  void add_head_errors(const StepBlock& block, const std::vector<const float*>& inputs);

  LayerWork& work_;
  Options options_;
  std::unique_ptr<Projection> projection_;
  std::vector<StepSeries> outcomes_;
  FullSeries full_;
  double projection_seconds_ = 0;
};

}  // namespace kvsim
