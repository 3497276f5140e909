#include "sim/core/layer_trace.hpp"

#include <algorithm>

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

}  // namespace kvsim
