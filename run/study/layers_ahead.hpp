#pragma once
#include <future>
#include <vector>

#include "run/trace/trace_files.hpp"
#include "sim/backend/backend.hpp"
#include "sim/backend/cuda_backend.hpp"

namespace kvsim {

/// Reads layers one after the other, one ahead of the work.
class LayersAhead {
 public:
  /// `order`: what next() will be asked for. What is given must outlive this.
  LayersAhead(const TraceFiles& files, Backend& backend, std::vector<int> order);

  /// Waits for the next layer and begins to read the one after it.
  LayerTrace next();

 private:
  void start();

  const TraceFiles& files_;
  PrefetchingBackend* ahead_of_;  ///< null if it needs no word of what comes
  std::vector<int> order_;
  size_t at_ = 0;
  std::future<LayerTrace> ahead_;
};

}  // namespace kvsim
