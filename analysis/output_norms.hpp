#pragma once
#include "sim/replay/prefill.hpp"

namespace kvsim {

class Dataset;

/// Which layers the stream error of a results file is of, e.g. "8 of the model's 30 layers"; empty
/// when it is of all of them, or was not measured.
std::string stream_error_layers(const Dataset& results);

struct OutputRows;
class StreamChange;

/// Norms of what each outcome of a layer's replay changes of what the layer adds to the residual
/// stream, at some of the T later steps: NaN elsewhere. All vectors of a block of steps are
/// projected at once; where more than W_O stands before the stream, StreamChange makes them.
class OutputNorms {
 public:
  /// `steps`: indices of those that are wanted, ascending. `heads`: every query head by itself,
  /// too, at all steps; `rounding`: what quantising adds, too.
  OutputNorms(LayerWork& work, size_t outcomes, std::vector<int64_t> steps, bool heads,
              bool rounding);
  ~OutputNorms();

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
  OutputRows projected(const StepBlock& block) const;
  void add_errors(const StepBlock& block, const std::vector<const float*>& inputs,
                  const OutputRows& there);
  void add_rounding(const StepBlock& block, const OutputRows& there);
  void add_heads(const StepBlock& block, std::vector<const float*> inputs);
  std::vector<double> norms_of_rows(const std::vector<const float*>& inputs,
                                    const OutputRows& there);
  std::vector<double> norms_of(const std::vector<std::vector<float>>& vectors,
                               const OutputRows& there);
  std::vector<double> changed_norms(const StepBlock& block, const OutputRows& there);
  std::vector<double> rounding_norms(const OutcomeBlock& view, const OutputRows& there);
  Outcome& of(const OutcomeBlock& view) { return outcomes_[view.outcome]; }

  LayerWork& work_;
  std::unique_ptr<StreamChange> change_;  ///< null: a product with W_O is all there is
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
