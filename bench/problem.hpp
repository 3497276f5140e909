#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "sim/backend/backend.hpp"

namespace kvsim::bench {

struct Shape {
  int64_t n = 4096;     ///< prompt
  int64_t d = 128;      ///< head size of keys and values
  int64_t group = 4;    ///< query heads on the one KV head
  int64_t steps = 144;  ///< later steps, at positions n..n+steps-1
  int64_t chunk = 0;    ///< keys per chunk of the fused replay; 0: its own choice
};

/// One KV head, its query group, eight policies and ten budgets from 1 % to 50 %. Values are those
/// of bfloat16: the replay reads 16 bits and widens, the baselines get float32 for nothing.
struct Problem {
  Problem(const Shape& shape, std::unique_ptr<Backend> backend);

  int64_t rows() const { return shape.group * shape.steps; }  ///< M, head-major
  int64_t keys() const { return shape.n + shape.steps; }      ///< N
  int64_t sets() const { return static_cast<int64_t>(request.plans.size() * kept.size()); }
  int64_t visible(int64_t row) const { return shape.n + row % shape.steps + 1; }
  const std::vector<uint32_t>& order(int64_t policy) const {
    return request.plans[static_cast<size_t>(policy)].owners[0].order;
  }
  /// 2 M n d: the cost of one pass over the keys.
  double unit() const;
  /// For bench/torch_baseline.py: float32 q (scaled), k, v, then uint32 orders [policies][n].
  void write(const std::string& path) const;

  Shape shape;
  std::unique_ptr<Backend> backend;  ///< of the forms `fused` and `sums`
  TraceInfo info;
  LayerTrace layer;
  ReplayRequest request;
  std::vector<int64_t> kept;   ///< entries per budget
  std::vector<float> q, k, v;  ///< float32 copies: q [M][d] scaled, k and v [N][d]
};

/// Outputs of one way of computing it: [sets + 1][M][d], the full cache last; and per set and row
/// the share of the softmax on what is kept and later positions, [sets][M].
struct Outputs {
  std::vector<float> z;
  std::vector<float> mass;
  std::vector<double> sums;  ///< of attention over the rows of each head, [group][n]; or empty
};

/// Largest relative error against float64: of outputs and shares over a sample of rows, or of sums
/// over a sample of keys.
double largest_error(const Problem& problem, const Outputs& outputs);

}  // namespace kvsim::bench
