#include "sim/replay/importance.hpp"

#include <algorithm>

namespace kvsim {

Table<float> norms_of_all(LayerWork& work, Norm norm) {
  const int64_t n = work.entries(), all = work.info().total_len;
  const Table<float>& prompt = work.projected_norms(norm);
  Table<float> later(work.query_heads(), all - n), whole(work.query_heads(), all);
  if (n < all) work.backend().projected_norms(work.trace(), norm, {n, all}, later.data());
  for (int64_t h = 0; h < whole.rows(); ++h) {
    std::ranges::copy(prompt.row(h), whole.row(h).begin());
    std::ranges::copy(later.row(h), whole.row(h).begin() + n);
  }
  return whole;
}

}  // namespace kvsim
