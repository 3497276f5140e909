#include "run/trace/trace_files.hpp"

#include "io/side_files.hpp"

namespace kvsim {

LayerTrace TraceFiles::layer(int layer) const {
  const std::lock_guard lock(access_);
  return trace_.read_layer(layer, false, probes_);
}

Table<double> TraceFiles::scores(const std::string& path, int layer, int64_t owners,
                                 int64_t entries) const {
  const std::lock_guard lock(access_);
  return read_scores(scores_file(path, trace_.info().path), layer, owners, entries);
}

Table<double> TraceFiles::table(const std::string& path, int64_t rows, int64_t columns) const {
  return read_table(path, rows, columns);
}

std::vector<std::string> TraceFiles::token_text() const {
  const std::lock_guard lock(access_);
  return trace_.token_text();
}

}  // namespace kvsim
