#pragma once
#include <mutex>

#include "io/trace_reader.hpp"
#include "sim/stages/scored_layer.hpp"

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

/// Something a trace may be enough for.
struct TraceUse {
  std::string name;  ///< e.g. "schedule=decode", or a preset
  bool served = false;
  std::string detail;  ///< how far it is served, or what is missing
};

/// A group of uses; `kvsim inspect` prints all groups in order of their titles' registration rank.
struct TraceUseGroup {
  int rank = 0;
  std::string title;
  std::function<std::vector<TraceUse>(const TraceReader&)> list;
};

/// Adds a group; called from the file that knows about it, e.g. the one that checks presets' needs.
bool register_trace_uses(TraceUseGroup group);
/// All groups, ascending by rank.
const std::vector<TraceUseGroup>& trace_use_groups();

/// Ascending positions as half-open runs.
std::vector<Range> runs_of(const std::vector<int64_t>& positions);
/// "0-4055, 4200" for runs, at most `most` of them.
std::string runs_text(const std::vector<int64_t>& positions, size_t most = 6);
/// Number of stored queries directly before position `end`: m such that end-m..end-1 are stored.
int64_t stored_before(const TraceInfo& info, int64_t end);

}  // namespace kvsim
