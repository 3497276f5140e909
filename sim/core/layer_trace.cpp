#include "sim/core/layer_trace.hpp"

#include <algorithm>
#include <cstring>

namespace kvsim {

int64_t TraceInfo::first_step() const {
  const auto first = std::lower_bound(query_position.begin(), query_position.end(), prompt_len);
  return first - query_position.begin();
}

int TraceInfo::find_probe(std::string_view name) const {
  const auto found = std::ranges::find_if(
      probes, [&](const ProbeInfo& probe) { return probe.name == name; });
  return found == probes.end() ? -1 : static_cast<int>(found - probes.begin());
}

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

}  // namespace

TraceInfo probe_info(const TraceInfo& info, int probe, size_t part, bool with_prompt) {
  const ProbeInfo& own = info.probes[static_cast<size_t>(probe)];
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
  const ProbeInfo& own = layer.info->probes[static_cast<size_t>(probe)];
  const ProbeLayer& tensors = layer.probes[static_cast<size_t>(probe)];
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

}  // namespace kvsim
