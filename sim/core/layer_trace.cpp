#include "sim/core/layer_trace.hpp"

#include <algorithm>

namespace kvsim {

int64_t TraceInfo::first_step() const {
  const auto first = std::lower_bound(query_position.begin(), query_position.end(), prompt_len);
  return first - query_position.begin();
}

}  // namespace kvsim
