#pragma once
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace kvsim {

/// Removes elements of a row-major array [rows][width] by ascending row numbers, in one
/// pass over those that follow.
template <class T>
void erase_rows(std::vector<T>& values, int64_t width, std::span<const int64_t> rows) {
  if (rows.empty()) return;
  const auto begin = values.begin();
  auto to = begin + rows.front() * width;
  for (size_t k = 0; k < rows.size(); ++k) {
    const auto from = begin + (rows[k] + 1) * width;
    const auto end = k + 1 < rows.size() ? begin + rows[k + 1] * width : values.end();
    to = std::move(from, end, to);
  }
  values.erase(to, values.end());
}

}  // namespace kvsim
