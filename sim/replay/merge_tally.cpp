#include "sim/replay/merge_tally.hpp"

#include <limits>

namespace kvsim {
namespace {

double column_sum(const Table<double>& table, int64_t column) {
  double sum = 0;
  for (int64_t r = 0; r < table.rows(); ++r) sum += table(r, column);
  return sum;
}

}  // namespace

MergeTally::MergeTally(int64_t heads, int64_t steps, bool changes)
    : sag_(heads, steps), shift_(heads, steps), defect_sum_(heads, steps), slots_(heads, steps),
      attention_(heads, steps), importance_(heads, steps), defects_(static_cast<size_t>(heads)) {
  if (changes) value_part_ = mass_part_ = Table<double>(heads, steps);
}

void MergeTally::add(int64_t head, int64_t step, const Row& row) {
  sag_(head, step) += row.sag_;
  shift_(head, step) += row.shift_;
  defect_sum_(head, step) += row.defect_sum_;
  slots_(head, step) += row.slots_;
  attention_(head, step) += row.attention_;
  importance_(head, step) += row.importance_;
}

double MergeTally::sag(int64_t step) const {
  return column_sum(sag_, step) / static_cast<double>(sag_.rows());
}

double MergeTally::shift(int64_t step) const {
  return column_sum(shift_, step) / static_cast<double>(shift_.rows());
}

double MergeTally::slot_mean(const Table<double>& sums, int64_t step) const {
  const double count = column_sum(slots_, step);
  return count > 0 ? column_sum(sums, step) / count : std::numeric_limits<double>::quiet_NaN();
}

double MergeTally::defect(int64_t step) const { return slot_mean(defect_sum_, step); }
double MergeTally::value_part(int64_t step) const { return slot_mean(value_part_, step); }
double MergeTally::mass_part(int64_t step) const { return slot_mean(mass_part_, step); }

std::vector<double> MergeTally::defects() const {
  std::vector<double> all;
  for (const Defects& head : defects_)
    all.insert(all.end(), head.of_head.begin(), head.of_head.end());
  return all;
}

}  // namespace kvsim
