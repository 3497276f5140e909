#include "sim/backend/backend.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "sim/core/log_sum.hpp"

namespace kvsim {

void AttentionBlock::shape(const LayerTrace& layer, const AttentionRequest& request) {
  kv_head = request.kv_head;
  heads = layer.info->group_size();
  rows = static_cast<int64_t>(request.rows.size());
  columns = request.columns;
  positions.clear();
  for (const int64_t row : request.rows)
    positions.push_back(layer.info->query_position[static_cast<size_t>(row)]);
  const auto all = static_cast<size_t>(heads * rows);
  const size_t cells = all * static_cast<size_t>(columns);
  attention.resize(cells);
  logits.resize(request.logits ? cells : 0);
  log_sum_exp.resize(all);
  outputs.resize(request.outputs ? all * static_cast<size_t>(layer.value_dim()) : 0);
}

namespace {

constexpr int64_t kEntries = 4096;  // read at a time: 4 MB of keys and values with d = dv = 128

/// Adds what a query sees of further entries.
void add_part(double log_mass, std::span<const float> mean, double& all_mass,
              std::span<double> all_mean) {
  const double together = log_add(all_mass, log_mass);
  if (together == -std::numeric_limits<double>::infinity()) return;
  const double before = std::exp(all_mass - together), added = std::exp(log_mass - together);
  for (size_t c = 0; c < mean.size(); ++c)
    all_mean[c] = before * all_mean[c] + added * static_cast<double>(mean[c]);
  all_mass = together;
}

}  // namespace

RestAttention rest_attention(Backend& backend, const LayerTrace& layer, int head,
                             std::span<const int64_t> queries, std::span<const uint32_t> without) {
  constexpr float kUnseen = -std::numeric_limits<float>::infinity();
  const auto count = std::ssize(queries);
  const int64_t d = layer.k.dim(2), dv = layer.value_dim();
  const int kv = head / layer.info->group_size();
  Table<float> rows(count, d);
  std::vector<int64_t> seen(queries.size());
  int64_t visible = 0;
  for (int64_t r = 0; r < count; ++r) {
    const int64_t query = queries[static_cast<size_t>(r)];
    layer.q.read(head, query, query + 1, rows.row(r).data());
    visible = std::max(visible, layer.info->query_position[static_cast<size_t>(query)] + 1);
  }
  RestAttention rest{std::vector<double>(queries.size(), static_cast<double>(kUnseen)),
                     Table<double>(count, dv, 0.0)};
  Table<float> means(count, dv);
  std::vector<double> masses(queries.size());
  for (int64_t begin = 0; begin < visible; begin += kEntries) {
    const int64_t end = std::min(visible, begin + kEntries);
    Table<float> keys(end - begin, d), values(end - begin, dv);
    layer.k.read(kv, begin, end, keys.data());
    layer.v.read(kv, begin, end, values.data());
    std::vector<float> weights(static_cast<size_t>(end - begin), 0.0f);
    for (const int64_t entry : without)
      if (entry >= begin && entry < end) weights[static_cast<size_t>(entry - begin)] = kUnseen;
    for (size_t r = 0; r < seen.size(); ++r) {
      const int64_t position = layer.info->query_position[static_cast<size_t>(queries[r])];
      seen[r] = std::clamp<int64_t>(position + 1 - begin, 0, end - begin);
    }
    SlotRows part;
    part.heads = 1;
    part.rows = count;
    part.queries = rows.data();
    part.segments = {{keys.data(), values.data(), end - begin, weights.data()}};
    part.seen = seen.data();
    part.sinks = begin == 0 ? sinks_from(layer, head) : nullptr;
    part.log_sum_exp = masses.data();
    part.outputs = means.data();
    backend.attend(layer, {&part, 1});
    for (int64_t r = 0; r < count; ++r)
      add_part(masses[static_cast<size_t>(r)], means.row(r), rest.log_mass[static_cast<size_t>(r)],
               rest.mean.row(r));
  }
  return rest;
}

}  // namespace kvsim
