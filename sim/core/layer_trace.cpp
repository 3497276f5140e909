#include "sim/core/layer_trace.hpp"

namespace kvsim {

Table<float> mean_queries(const LayerTrace& layer, int first_head, int heads, int64_t begin,
                          int64_t end) {
  Table<float> one(end - begin, layer.q.dim(2));
  layer.q.read(first_head, begin, end, one.data());
  if (heads == 1) return one;
  std::vector<double> sum(one.values().begin(), one.values().end());
  for (int x = 1; x < heads; ++x) {
    layer.q.read(first_head + x, begin, end, one.data());
    for (size_t c = 0; c < sum.size(); ++c) sum[c] += static_cast<double>(one.values()[c]);
  }
  for (size_t c = 0; c < sum.size(); ++c) one.values()[c] = static_cast<float>(sum[c] / heads);
  return one;
}

namespace {

/// Rows of a [a][rows][c] tensor.
struct TensorRows {
  const Tensor& tensor;
  Range rows;
};

/// [a][first rows, then second ones][c]: in their type where they have the same one, else float32.
Tensor joined(const TensorRows& first, const TensorRows& second) {
  const ElementType type = first.tensor.type() == second.tensor.type() ? first.tensor.type()
                                                                       : ElementType::float32;
  const int64_t slices = second.tensor.dim(0), width = second.tensor.dim(2);
  const int64_t rows = first.rows.size() + second.rows.size();
  Tensor out(type, {slices, rows, width});
  std::byte* to = out.data();
  for (int64_t a = 0; a < slices; ++a)
    for (const TensorRows& from : {first, second}) {
      const size_t bytes = static_cast<size_t>(from.rows.size() * width) * element_size(type);
      if (from.rows.size() > 0 && from.tensor.type() == type)
        std::memcpy(to, from.tensor.row(a, from.rows.begin), bytes);
      else if (from.rows.size() > 0)
        from.tensor.read(a, from.rows.begin, from.rows.end, reinterpret_cast<float*>(to));
      to += bytes;
    }
  return out;
}

/// Stored queries at some positions, by number.
Range queries_at(const TraceInfo& info, Range positions) {
  const auto number_of = [&](int64_t position) {
    return std::ranges::lower_bound(info.query_position, position) - info.query_position.begin();
  };
  return {number_of(positions.begin), number_of(positions.end)};
}

/// [a][rows][c] of [a][..][c].
Tensor rows_of(const Tensor& tensor, Range rows) {
  return joined({tensor, {0, 0}}, {tensor, rows});
}

std::vector<float> part_of(const std::vector<float>& values, Range range) {
  if (values.empty()) return {};
  return {values.begin() + range.begin, values.begin() + range.end};
}

/// [a][m][c]: of each slice the rows that are named.
Tensor gathered(const Tensor& tensor, const std::vector<std::vector<uint32_t>>& rows) {
  Tensor out(tensor.type(), {tensor.dim(0), std::ssize(rows[0]), tensor.dim(2)});
  const size_t bytes = static_cast<size_t>(tensor.dim(2)) * element_size(tensor.type());
  std::byte* to = out.data();
  for (int64_t a = 0; a < tensor.dim(0); ++a)
    for (const uint32_t row : rows[a]) {
      std::memcpy(to, tensor.row(a, row), bytes);
      to += bytes;
    }
  return out;
}

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
  std::vector<float> sizes(heads * dv);
  parallel_for(heads, [&](int64_t h) {
    std::vector<float> gate;
    std::vector<double> sums(dv, 0.0);
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

TraceInfo probe_info(const TraceInfo& info, int probe, size_t part, bool with_prompt) {
  const ProbeInfo& own = info.probes[probe];
  const Range tokens = own.parts[part].tokens;
  TraceInfo view = info;
  view.total_len = info.prompt_len + (own.has_keys ? tokens.size() : 0);
  view.query_position.resize(with_prompt ? static_cast<size_t>(info.first_step()) : 0);
  for (int64_t t = 0; t < tokens.size(); ++t)
    view.query_position.push_back(info.prompt_len + (own.has_keys ? t : -1));
  view.has_residual_norm = with_prompt ? info.has_residual_norm && own.has_residual_norm
                                       : own.has_residual_norm;
  view.check_position.clear();
  return view;
}

LayerTrace probe_layer(const LayerTrace& layer, const TraceInfo& info, int probe, size_t part,
                       bool with_prompt) {
  const ProbeInfo& own = layer.info->probes[probe];
  const ProbeLayer& tensors = layer.probes[probe];
  const Range tokens = own.parts[part].tokens, prompt{0, info.prompt_len};
  const Range before{0, with_prompt ? layer.info->first_step() : 0};
  LayerTrace view = layer;
  view.info = &info;
  view.q = joined({layer.q, before}, {tensors.q, tokens});
  if (own.has_keys) {
    view.k = joined({layer.k, prompt}, {tensors.k, tokens});
    view.v = joined({layer.v, prompt}, {tensors.v, tokens});
  }
  if (!tensors.gate.empty())
    view.path.gate = joined({layer.path.gate, before}, {tensors.gate, tokens});
  view.residual_norm.clear();
  if (info.has_residual_norm) {
    view.residual_norm.assign(layer.residual_norm.begin(),
                              layer.residual_norm.begin() + before.size());
    view.residual_norm.insert(view.residual_norm.end(),
                              tensors.residual_norm.begin() + tokens.begin,
                              tensors.residual_norm.begin() + tokens.end);
  }
  view.check_output.clear();
  view.check_added.clear();
  return view;
}

std::unique_ptr<ProbeView> probe_view(const LayerTrace& layer, int probe, size_t part) {
  auto view = std::make_unique<ProbeView>();
  view->info = probe_info(*layer.info, probe, part, false);
  view->layer = probe_layer(layer, view->info, probe, part, false);
  return view;
}

TraceInfo cache_info(const TraceInfo& info, int64_t entries, Range newest) {
  TraceInfo view = info;
  view.prompt_len = view.total_len = entries;
  view.query_position.clear();
  const Range queries = queries_at(info, newest);
  for (int64_t r = queries.begin; r < queries.end; ++r)
    view.query_position.push_back(info.query_position[r] - newest.end + entries);
  view.spans.clear();
  view.check_position.clear();
  view.probes.clear();
  return view;
}

LayerTrace cache_layer(const LayerTrace& layer, const TraceInfo& info,
                       const std::vector<std::vector<uint32_t>>& entries, Range newest) {
  const Range queries = queries_at(*layer.info, newest);
  LayerTrace view = layer;
  view.info = &info;
  view.q = rows_of(layer.q, queries);
  view.k = gathered(layer.k, entries);
  view.v = gathered(layer.v, entries);
  if (!layer.path.gate.empty()) view.path.gate = rows_of(layer.path.gate, queries);
  for (PathNorm* const norm : {&view.path.inner, &view.path.outer})
    norm->rms = part_of(norm->rms, queries);
  view.residual_norm = part_of(layer.residual_norm, queries);
  view.check_output.clear();
  view.check_added.clear();
  view.probes.clear();
  return view;
}

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
    std::vector<float> values(width);
    path.wo.read(row / dv, row % dv, row % dv + 1, values.data());
    const double factor = (path.usual_gate.empty() ? 1.0
                                                   : static_cast<double>(path.usual_gate[row])) *
                          (path.inner.gain.empty() ? 1.0
                                                   : static_cast<double>(path.inner.gain[row])) /
                          (path.inner.usual * path.outer.usual);
    for (size_t c = 0; c < values.size(); ++c) {
      const double gain = path.outer.gain.empty() ? 1.0 : static_cast<double>(path.outer.gain[c]);
      values[c] = static_cast<float>(static_cast<double>(values[c]) * factor * gain);
    }
    narrow(ElementType::float32, values.data(), width,
           usual.data() + (usual.row(row / dv, row % dv) - usual.data()));
  });
  if (first_non_finite(ElementType::float32, usual.data(), usual.count()) >= 0)
    bad_data({"W_O with its gate, norms and gains is not finite",
              layer.info->path + ": layers/" + std::to_string(layer.layer) + "/wo", "",
              "products within float32"});
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
  std::vector<double> y(width, 0.0);
  std::vector<float> row(y.size());
  for (int64_t i = 0; i < std::ssize(x); ++i) {
    if (x[i] == 0) continue;
    wo.read(i / dv, i % dv, i % dv + 1, row.data());
    for (size_t c = 0; c < y.size(); ++c) y[c] += x[i] * static_cast<double>(row[c]);
  }
  pass(path.outer, y, outer_root);
  return y;
}

}  // namespace kvsim
