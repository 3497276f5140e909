#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "sim/backend/layer_work.hpp"

namespace kvsim {

/// Outputs of a block of steps that a sink was given: [Hq][stride][dv], on the host or a `delta` of
/// the block in work; `rows` of them are meant, which are `steps` of 0..T-1.
struct OutputRows {
  int64_t stride = 0;
  std::vector<int64_t> rows;
  std::vector<int64_t> steps;
};

/// Turns changes of what a layer's heads put out into vectors whose product with W* is the change
/// of the residual stream, by gates and norms as they then are (trace-format.md 8).
class StreamChange {
 public:
  explicit StreamChange(LayerWork& work);

  /// Outputs z of the full cache; before changes() of the same steps. Returns [Hq][rows][dv].
  std::vector<float> set_full(const float* z, const OutputRows& there);
  /// From z + `before` to z + `after`; null is 0. Returns [Hq][rows][dv].
  std::vector<float> change(const float* before, const float* after, const OutputRows& there) const;
  /// Every head by itself, x [Hq][steps][dv] from step `first` on: with the gate of its step.
  std::vector<float> gated(const float* x, int64_t first, int64_t steps) const;

 private:
  using Vectors = std::vector<std::vector<double>>;  ///< [rows][Hq * dv]
  Vectors read(const float* x, const OutputRows& there) const;
  void weigh(Vectors& outputs, const std::vector<int64_t>& steps) const;
  std::vector<float> by_heads(const Vectors& outputs) const;
  void read_gate(int64_t head, int64_t step, std::vector<double>& gate) const;

  LayerWork& work_;
  int64_t heads_, width_;
  Vectors z_;                      ///< [T]; empty of steps that were not seen
  Vectors weighed_;                ///< [T] z_ as W* takes it
  LayerTrace before_norm_;         ///< W_O with all that stands before the norm behind it
  std::unique_ptr<Backend> host_;  ///< of its own, as a backend prepares one W_O at a time
  std::unique_ptr<Projection> projection_;
};

}  // namespace kvsim
