#pragma once
#include <mutex>

#include "io/side_files.hpp"
#include "io/trace_reader.hpp"
#include "sim/stages/kind.hpp"

namespace kvsim {

/// Reader of a run's trace and of files that records name, by one thread at a time, as the
/// HDF5 library wants it: layers are read ahead while records ask for their files.
class TraceFiles : public SideFiles {
 public:
  /// The reader must outlive this.
  explicit TraceFiles(const TraceReader& trace) : trace_(trace) {}

  /// Layers are read with these probes from now on.
  void read_probes(std::set<int> probes) { probes_ = std::move(probes); }
  LayerTrace layer(int layer) const {
    const std::lock_guard lock(access_);
    return trace_.read_layer(layer, false, probes_);
  }
  Table<double> scores(const std::string& path, int layer, int64_t owners,
                       int64_t entries) const override {
    const std::lock_guard lock(access_);
    return read_scores(scores_file(path, trace_.info().path), layer, owners, entries);
  }
  Table<double> table(const std::string& path, int64_t rows, int64_t columns) const override {
    return read_table(path, rows, columns);
  }
  std::vector<std::string> token_text() const override {
    const std::lock_guard lock(access_);
    return trace_.token_text();
  }

 private:
  const TraceReader& trace_;
  std::set<int> probes_;
  mutable std::mutex access_;
};

}  // namespace kvsim
