#include "sim/core/stream_share.hpp"

#include <algorithm>
#include <cmath>
#include <string>

#include "sim/core/error.hpp"
#include "sim/core/parallel.hpp"

namespace kvsim {
namespace {

/// Stored queries over which sizes are taken: those of the prompt, all where there are none.
Range usual_queries(const TraceInfo& info) {
  const int64_t first = info.first_step();
  return {0, first > 0 ? first : std::ssize(info.query_position)};
}

double lower_median(const std::vector<float>& values, Range range) {
  std::vector<float> some(values.begin() + range.begin, values.begin() + range.end);
  const auto middle = some.begin() + (std::ssize(some) - 1) / 2;
  std::ranges::nth_element(some, middle);
  return static_cast<double>(*middle);
}

/// [Hq * dv] root of the mean square of the gate over the usual queries.
std::vector<float> gate_sizes(const LayerTrace& layer) {
  const int64_t heads = layer.wo.dim(0), dv = layer.wo.dim(1);
  const Range queries = usual_queries(*layer.info);
  std::vector<float> sizes(static_cast<size_t>(heads * dv));
  parallel_for(heads, [&](int64_t h) {
    std::vector<float> gate;
    std::vector<double> sums(static_cast<size_t>(dv), 0.0);
    for (int64_t q = queries.begin; q < queries.end; ++q) {
      layer.path.read_gate(h, q, gate);
      for (size_t c = 0; c < sums.size(); ++c) {
        const auto g = static_cast<double>(gate[std::min(c, gate.size() - 1)]);
        sums[c] += g * g;
      }
    }
    for (size_t c = 0; c < sums.size(); ++c) {
      const double size = std::sqrt(sums[c] / static_cast<double>(queries.size()));
      sizes[static_cast<size_t>(h * dv) + c] = size > 0 ? static_cast<float>(size) : 1.0f;
    }
  });
  return sizes;
}

}  // namespace

void set_usual_output(LayerTrace& layer) {
  OutputPath& path = layer.path;
  if (path.empty()) return;
  path.wo = layer.wo;
  if (!path.gate.empty()) path.usual_gate = gate_sizes(layer);
  for (PathNorm* const norm : {&path.inner, &path.outer})
    if (norm->divides) norm->usual = lower_median(norm->rms, usual_queries(*layer.info));
  const int64_t heads = layer.wo.dim(0), dv = layer.wo.dim(1), width = layer.wo.dim(2);
  Tensor usual(ElementType::float32, {heads, dv, width});
  parallel_for(heads * dv, [&](int64_t row) {
    std::vector<float> values(static_cast<size_t>(width));
    path.wo.read(row / dv, row % dv, row % dv + 1, values.data());
    const auto at = static_cast<size_t>(row);
    const double factor = (path.usual_gate.empty() ? 1.0
                                                   : static_cast<double>(path.usual_gate[at])) *
                          (path.inner.gain.empty() ? 1.0
                                                   : static_cast<double>(path.inner.gain[at])) /
                          (path.inner.usual * path.outer.usual);
    for (size_t c = 0; c < values.size(); ++c) {
      const double gain = path.outer.gain.empty() ? 1.0 : static_cast<double>(path.outer.gain[c]);
      values[c] = static_cast<float>(static_cast<double>(values[c]) * factor * gain);
    }
    narrow(ElementType::float32, values.data(), width,
           usual.data() + (usual.row(row / dv, row % dv) - usual.data()));
  });
  if (first_non_finite(ElementType::float32, usual.data(), usual.count()) >= 0)
    bad_data({.what = "W_O with its gate, norms and gains is not finite",
              .where = layer.info->path + ": layers/" + std::to_string(layer.layer) + "/wo",
              .expected = "products within float32"});
  layer.wo = usual;
}

std::vector<double> added_to_stream(const LayerTrace& layer, int64_t query,
                                    const std::vector<double>& z, double* inner_root,
                                    double* outer_root) {
  const OutputPath& path = layer.path;
  const Tensor& wo = path.wo.empty() ? layer.wo : path.wo;
  const int64_t dv = wo.dim(1), width = wo.dim(2);
  std::vector<double> x = z;
  if (!path.gate.empty()) {
    std::vector<float> gate;
    for (size_t i = 0; i < x.size(); ++i) {
      const size_t c = i % static_cast<size_t>(dv);
      if (c == 0) path.read_gate(static_cast<int64_t>(i) / dv, query, gate);
      x[i] *= static_cast<double>(gate[std::min(c, gate.size() - 1)]);
    }
  }
  const auto pass = [](const PathNorm& norm, std::vector<double>& values, double* root) {
    double squares = 0;
    for (const double one : values) squares += one * one;
    const double by = norm.divides ? norm.root(squares, static_cast<double>(values.size())) : 1;
    if (root != nullptr) *root = by;
    for (size_t i = 0; i < values.size(); ++i)
      values[i] *= (norm.gain.empty() ? 1.0 : static_cast<double>(norm.gain[i])) /
                   (by > 0 ? by : 1);  // a vector of zeros stays one
  };
  pass(path.inner, x, inner_root);
  std::vector<double> y(static_cast<size_t>(width), 0.0);
  std::vector<float> row(y.size());
  for (size_t i = 0; i < x.size(); ++i) {
    if (x[i] == 0) continue;
    const auto k = static_cast<int64_t>(i);
    wo.read(k / dv, k % dv, k % dv + 1, row.data());
    for (size_t c = 0; c < y.size(); ++c) y[c] += x[i] * static_cast<double>(row[c]);
  }
  pass(path.outer, y, outer_root);
  return y;
}

}  // namespace kvsim
