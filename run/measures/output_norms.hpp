#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "sim/replay/prefill.hpp"

namespace kvsim {

/// Norms after W_O of what each outcome of a layer's replay changes of the layer's output, at some
/// of the T later steps: NaN elsewhere. All vectors of a block of steps are projected at once.
class OutputNorms {
 public:
  /// `steps`: indices of those that are wanted, ascending. `heads`: every query head by itself,
  /// too, at all steps; `rounding`: what quantising adds, too.
  OutputNorms(LayerWork& work, size_t outcomes, std::vector<int64_t> steps, bool heads,
              bool rounding);

  void add(const StepBlock& block);

  const std::vector<double>& full() const { return full_; }        ///< [T] of the full cache
  const Table<double>& full_heads() const { return full_heads_; }  ///< [Hq][T]
  const std::vector<double>& error(size_t outcome) const { return outcomes_[outcome].error; }
  const Table<double>& error_heads(size_t outcome) const { return outcomes_[outcome].heads; }
  const std::vector<double>& rounding(size_t outcome) const { return outcomes_[outcome].rounding; }
  double seconds() const { return seconds_; }  ///< spent in add()

 private:
  struct Outcome {
    std::vector<double> error;     ///< [T]
    Table<double> heads;           ///< [Hq][T], or empty
    std::vector<double> rounding;  ///< [T], or empty
  };
  struct Projected {
    int64_t stride = 0;          ///< outputs that the block holds of each head
    std::vector<int64_t> rows;   ///< numbers among them
    std::vector<int64_t> steps;  ///< 0..T-1
  };
  Projected projected(const StepBlock& block) const;
  void add_errors(const StepBlock& block, const std::vector<const float*>& inputs,
                  const Projected& there);
  void add_rounding(const StepBlock& block, const Projected& there);
  void add_heads(const StepBlock& block, const std::vector<const float*>& inputs);
  Outcome& of(const OutcomeBlock& view) { return outcomes_[static_cast<size_t>(view.outcome)]; }

  LayerWork& work_;
  std::vector<int64_t> steps_;
  bool heads_;
  bool rounding_;
  std::unique_ptr<Projection> projection_;
  std::vector<double> full_;
  Table<double> full_heads_;
  std::vector<Outcome> outcomes_;
  double seconds_ = 0;
};

}  // namespace kvsim
