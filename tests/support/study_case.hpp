#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "io/trace_reader.hpp"
#include "run/study/study.hpp"
#include "run/trace/synth.hpp"
#include "tests/io/trace_fixture.hpp"
#include "tests/support/random_trace.hpp"

namespace kvsim::test {

/// A synthetic trace, open to be read, and the folder of its own that it lies in.
struct SynthFolder {
  explicit SynthFolder(const SynthConfig& config) { write_synth(config, folder / "t.h5"); }
  const TemporaryFolder folder;
};
struct SynthTrace : SynthFolder, TraceReader {
  explicit SynthTrace(const SynthConfig& config)
      : SynthFolder(config), TraceReader(folder / "t.h5") {}
};

/// What was typed, measured at all steps.
StudyOptions options_for(const std::vector<std::string>& records,
                         const std::vector<std::string>& budgets, const std::vector<int>& layers);
Dataset study_of(const TraceReader& reader, const StudyOptions& options);

/// In float64: A of every position for one stored query, times the L1 norm of v W.
std::vector<double> importance_of(const LayerTrace& layer, int head, int64_t row);

/// A trace in a file, and what a study says of its layer 0. Unless `change` says otherwise: one
/// budget of 0.5, seed 0, output error at one step. `later`: the probe whose tokens take the place
/// of the later ones.
class StudyCase {
 public:
  /// A random trace of one layer.
  StudyCase(
      const RandomTraceShape& shape, const std::vector<Span>& spans,
      const std::vector<std::string>& records,
      const std::function<void(StudyOptions&)>& change = [](StudyOptions&) {},
      const std::string& later = {});
  StudyCase(const SynthConfig& config, const std::vector<std::string>& records,
            const std::function<void(StudyOptions&)>& change);

  const TraceInfo& info() const { return reader_->info(); }
  const LayerTrace& layer() const { return layer_; }
  const Dataset& results() const { return results_; }
  const TraceReader& reader() const { return *reader_; }
  double value(const char* variable, std::initializer_list<int64_t> index) const {
    return results_.row(variable, index)[0];
  }
  /// In float64: A of every position at one later step, and importance_of() it.
  std::vector<double> attention(int head, int64_t step) const;
  std::vector<double> importance(int head, int64_t step) const;
  /// By the results' mask (--save-keep), of the owner that query head `head` reads.
  bool kept(int64_t record, int64_t budget, int head, int64_t entry) const;

 private:
  void measure(const std::vector<std::string>& records,
               const std::function<void(StudyOptions&)>& change, const std::string& later);

  TemporaryFolder folder_;
  std::unique_ptr<TraceReader> reader_;
  LayerTrace layer_;
  Dataset results_;
};

}  // namespace kvsim::test
