#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "sim/core/erase_rows.hpp"

namespace kvsim {

/// One value per line and slot, [lines][slots], with slots that come and go.
template <class T>
class LineTable {
 public:
  LineTable(int lines, int64_t slots, T value)
      : fill_(value),
        lines_(static_cast<size_t>(lines), std::vector<T>(static_cast<size_t>(slots), value)) {}

  std::vector<T>& line(int l) { return lines_[static_cast<size_t>(l)]; }
  T& at(int64_t slot, int l) { return lines_[static_cast<size_t>(l)][static_cast<size_t>(slot)]; }
  const T& at(int64_t slot, int l) const {
    return lines_[static_cast<size_t>(l)][static_cast<size_t>(slot)];
  }
  void append() {
    for (auto& line : lines_) line.push_back(fill_);
  }
  void erase(std::span<const int64_t> slots) {
    for (auto& line : lines_) erase_rows(line, 1, slots);
  }

 private:
  T fill_;
  std::vector<std::vector<T>> lines_;
};

}  // namespace kvsim
