#include "sim/replay/full_attention.hpp"

#include <algorithm>
#include <numeric>

namespace kvsim {

int64_t FullAttention::most_steps() const {
  constexpr int64_t kValues = int64_t{1} << 24;  // attention of all heads: 64 MB
  const int64_t of_step = work_.query_heads() * work_.entries();
  return std::clamp<int64_t>(kValues / of_step, 1, std::max<int64_t>(1, work_.info().steps()));
}

const std::vector<AttentionBlock>& FullAttention::rows(int64_t first, int64_t steps) {
  const Range wanted{first, first + steps};
  if (wanted == steps_) return blocks_;
  steps_ = wanted;
  blocks_.resize(static_cast<size_t>(work_.kv_heads()));
  AttentionRequest request;
  request.rows.resize(static_cast<size_t>(steps));
  std::iota(request.rows.begin(), request.rows.end(), work_.info().first_step() + first);
  request.columns = work_.entries();
  request.logits = true;
  for (request.kv_head = 0; request.kv_head < work_.kv_heads(); ++request.kv_head)
    work_.backend().attention(work_.trace(), request,
                              blocks_[static_cast<size_t>(request.kv_head)]);
  return blocks_;
}

}  // namespace kvsim
