#include "run/study/layers_ahead.hpp"

namespace kvsim {

LayersAhead::LayersAhead(const TraceFiles& files, Backend& backend, std::vector<int> order)
    : files_(files), ahead_of_(dynamic_cast<PrefetchingBackend*>(&backend)),
      order_(std::move(order)) {
  start();
}

LayerTrace LayersAhead::next() {
  LayerTrace layer = ahead_.get();
  if (ahead_of_ != nullptr) ahead_of_->begin(layer);
  start();
  return layer;
}

void LayersAhead::start() {
  if (at_ == order_.size()) return;
  ahead_ = std::async(std::launch::async, [this, layer = order_[at_++]] {
    LayerTrace trace = files_.layer(layer);
    if (ahead_of_ != nullptr) ahead_of_->prefetch(trace);
    return trace;
  });
}

}  // namespace kvsim
