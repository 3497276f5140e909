#include "sim/backend/cpu/loader.hpp"

#include <algorithm>
#include <vector>

namespace kvsim {

const float* load_rows(const Tensor& tensor, int64_t a, int64_t begin, int64_t end, int64_t ld,
                       Scratch<float>& buffer) {
  const int64_t columns = tensor.dim(2);
  if (columns == ld && tensor.type() == ElementType::float32)
    return reinterpret_cast<const float*>(tensor.row(a, begin));
  float* const out = buffer.reserve((end - begin) * ld);
  if (columns == ld) {
    tensor.read(a, begin, end, out);
    return out;
  }
  for (int64_t i = begin; i < end; ++i) {
    float* const row = out + (i - begin) * ld;
    tensor.read(a, i, i + 1, row);
    std::fill(row + columns, row + ld, 0.0f);
  }
  return out;
}

std::span<const std::byte> stored_rows(const Tensor& tensor, int64_t a, int64_t begin,
                                       int64_t end) {
  const int64_t bytes =
      (end - begin) * tensor.dim(2) * static_cast<int64_t>(element_size(tensor.type()));
  if (bytes <= 0) return {};
  return {tensor.row(a, begin), static_cast<size_t>(bytes)};
}

void load_queries(const LayerTrace& layer, std::span<const QueryRow> rows, int64_t ld, float* qt) {
  const int64_t d = layer.q.dim(2);
  const float scale = static_cast<float>(layer.scale);
  std::vector<float> query(static_cast<size_t>(d));
  std::fill(qt, qt + d * ld, 0.0f);
  for (size_t r = 0; r < rows.size(); ++r) {
    layer.q.read(rows[r].head, rows[r].row, rows[r].row + 1, query.data());
    for (int64_t j = 0; j < d; ++j)
      qt[j * ld + static_cast<int64_t>(r)] = query[static_cast<size_t>(j)] * scale;
  }
}

}  // namespace kvsim
