#pragma once
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "sim/backend/backend.hpp"
#include "sim/core/layer_trace.hpp"
#include "sim/stages/kind.hpp"
#include "tests/support/random_trace.hpp"

namespace kvsim::test {

/// Several random layers of one trace, in memory.
struct RandomRun {
  TraceInfo info;
  std::vector<LayerTrace> layers;

  std::vector<int> layer_indices() const;
};

/// `layers`: indices of the layers in the file, of `model_layers` that the model has. Every layer
/// has the shape of `shape` and numbers of its own.
std::unique_ptr<RandomRun> random_run(const RandomTraceShape& shape, const std::vector<int>& layers,
                                      int model_layers);

/// The files that records of a test name: any path gives the same numbers.
class MadeUpFiles : public SideFiles {
 public:
  std::map<int, Table<double>> layer_scores;  ///< by layer
  Table<double> rows;                         ///< of `table=`
  Table<double> scores(const std::string&, int layer, int64_t, int64_t) const override {
    return layer_scores.at(layer);
  }
  Table<double> table(const std::string&, int64_t, int64_t) const override { return rows; }
  /// A special token first, and a comma at every fifth position.
  std::vector<std::string> token_text() const override;
};

/// What records keep, as a run of the program would have it: [layer][record][budget].
std::vector<LayerKept> kept_of(const RandomRun& run, const std::vector<std::string>& records,
                               const std::vector<std::string>& budgets, uint64_t seed = 0,
                               const SideFiles& files = MadeUpFiles());

}  // namespace kvsim::test
