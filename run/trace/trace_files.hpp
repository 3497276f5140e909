#pragma once
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "io/trace_reader.hpp"
#include "sim/stages/side_files.hpp"

namespace kvsim {

/// Reader of a run's trace and of files that records name, by one thread at a time, as the
/// HDF5 library wants it: layers are read ahead while records ask for their files.
class TraceFiles : public SideFiles {
 public:
  /// The reader must outlive this.
  explicit TraceFiles(const TraceReader& trace) : trace_(trace) {}

  /// Layers are read with these probes from now on.
  void read_probes(std::set<int> probes) { probes_ = std::move(probes); }
  LayerTrace layer(int layer) const;
  Table<double> scores(const std::string& path, int layer, int64_t owners,
                       int64_t entries) const override;
  Table<double> table(const std::string& path, int64_t rows, int64_t columns) const override;
  std::vector<std::string> token_text() const override;

 private:
  const TraceReader& trace_;
  std::set<int> probes_;
  mutable std::mutex access_;
};

}  // namespace kvsim
