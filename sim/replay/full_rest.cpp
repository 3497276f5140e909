#include "sim/replay/full_rest.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace kvsim {

FullRest full_rest(const LayerTrace& layer, int head, int64_t step,
                   std::span<const uint32_t> without) {
  constexpr double kNone = -std::numeric_limits<double>::infinity();
  const TraceInfo& info = *layer.info;
  const int64_t row = info.first_step() + step;
  const int64_t seen = info.query_position[static_cast<size_t>(row)] + 1;
  const int kv = head / info.group_size();
  const auto d = static_cast<size_t>(layer.k.dim(2)), dv = static_cast<size_t>(layer.value_dim());
  std::vector<float> query(d), keys(static_cast<size_t>(seen) * d),
      values(static_cast<size_t>(seen) * dv);
  layer.q.read(head, row, row + 1, query.data());
  layer.k.read(kv, 0, seen, keys.data());
  layer.v.read(kv, 0, seen, values.data());

  const double sink = layer.attention_sink.empty()
                          ? kNone
                          : static_cast<double>(layer.attention_sink[static_cast<size_t>(head)]);
  double largest = sink;
  std::vector<double> logits(static_cast<size_t>(seen));
  for (size_t i = 0; i < logits.size(); ++i) {
    double x = 0;
    for (size_t c = 0; c < d; ++c)
      x += static_cast<double>(query[c]) * static_cast<double>(keys[i * d + c]);
    x *= layer.scale;
    if (layer.softcap != 0) x = layer.softcap * std::tanh(x / layer.softcap);
    logits[i] = x;
  }
  for (const uint32_t entry : without)
    if (entry < logits.size()) logits[entry] = kNone;
  for (const double x : logits) largest = std::max(largest, x);

  FullRest rest{kNone, std::vector<double>(dv, 0.0)};
  if (largest == kNone) return rest;  // nothing else is seen
  double total = std::exp(sink - largest);
  for (size_t i = 0; i < logits.size(); ++i) {
    const double weight = std::exp(logits[i] - largest);
    total += weight;
    for (size_t c = 0; c < dv; ++c)
      rest.mean[c] += weight * static_cast<double>(values[i * dv + c]);
  }
  for (double& x : rest.mean) x /= total;
  rest.log_mass = largest + std::log(total);
  return rest;
}

}  // namespace kvsim
