#pragma once
#include <map>
#include <utility>
#include <vector>

#include "sim/core/archive.hpp"
#include "sim/replay/prefill.hpp"

namespace kvsim {

/// Something that is added up over layers for every policy at every budget.
template <class Sum>
class CellSums {
 public:
  Sum& operator[](ReplayCell cell) { return sums_[{cell.record, cell.budget}]; }
  template <class Visit>
  void for_each(Visit visit) const {
    for (const auto& [cell, sum] : sums_) visit(ReplayCell{cell.first, cell.second}, sum);
  }
  /// The sums so far, to or from an archive.
  void exchange(Archive& archive) {
    std::vector<int> cells;
    for (const auto& [cell, sum] : sums_) cells.insert(cells.end(), {cell.first, cell.second});
    archive.exchange(cells);
    for (size_t c = 0; c + 1 < cells.size(); c += 2)
      sums_[{cells[c], cells[c + 1]}].exchange(archive);
  }

 private:
  std::map<std::pair<int, int>, Sum> sums_;
};

}  // namespace kvsim
