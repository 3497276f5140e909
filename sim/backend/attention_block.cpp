#include "sim/backend/backend.hpp"

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

}  // namespace kvsim
