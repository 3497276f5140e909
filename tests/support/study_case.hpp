#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "io/trace_reader.hpp"
#include "run/study/study.hpp"
#include "tests/io/trace_fixture.hpp"
#include "tests/support/random_trace.hpp"

namespace kvsim::test {

/// A random trace of one layer in a file, and what a study says of it. Unless `change` says
/// otherwise: one budget of 0.5, seed 0, output error at one step. `later`: the probe whose tokens
/// take the place of the later ones.
class StudyCase {
 public:
  StudyCase(
      const RandomTraceShape& shape, const std::vector<Span>& spans,
      const std::vector<std::string>& records,
      const std::function<void(StudyOptions&)>& change = [](StudyOptions&) {},
      const std::string& later = {});

  const TraceInfo& info() const { return reader_->info(); }
  const LayerTrace& layer() const { return layer_; }
  const Dataset& results() const { return results_; }
  const TraceReader& reader() const { return *reader_; }
  double value(const char* variable, std::initializer_list<int64_t> index) const {
    return results_.row(variable, index)[0];
  }
  /// In float64: A of every position at one later step, and the same times the L1 norm of v W.
  std::vector<double> attention(int head, int64_t step) const;
  std::vector<double> importance(int head, int64_t step) const;
  /// By the results' mask (--save-keep), of the owner that query head `head` reads.
  bool kept(int64_t record, int64_t budget, int head, int64_t entry) const;

 private:
  TemporaryFolder folder_;
  std::unique_ptr<TraceReader> reader_;
  LayerTrace layer_;
  Dataset results_;
};

}  // namespace kvsim::test
