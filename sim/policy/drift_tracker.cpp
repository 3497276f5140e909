#include "sim/policy/drift_tracker.hpp"

#include <algorithm>
#include <numeric>

#include "sim/core/sortable_bits.hpp"

namespace kvsim {
namespace {

/// The entries of one row, sorted into bins by the first bits of their scores. Sums over the best
/// need the order inside a bin only where the best end in it. One object per thread, used again.
class RowBins {
 public:
  void fill(std::span<const double> row) {
    bin_of_.resize(row.size());
    lowest_ = bins_.size();
    highest_ = 0;
    for (size_t i = 0; i < row.size(); ++i) {
      const uint16_t at = static_cast<uint16_t>(sortable_bits(row[i]) >> 48);
      bin_of_[i] = at;
      lowest_ = std::min<size_t>(lowest_, at);
      highest_ = std::max<size_t>(highest_, at);
      ++bins_[at].count;
      bins_[at].places += i;
    }
    at_ = highest_;
    above_ = 0;
    places_ = 0;
    lists_ = 0;
    cuts_.clear();
  }

  /// Asks for the `count` best of the row; counts come in ascending order.
  void cut(size_t variant, int64_t count) {
    while (above_ + static_cast<int64_t>(bins_[at_].count) < count) {
      above_ += bins_[at_].count;
      places_ += bins_[at_].places;
      --at_;
    }
    if (bins_[at_].list == 0) bins_[at_].list = ++lists_;
    cuts_.push_back({variant, count, count - above_, places_, bins_[at_].list - 1});
  }

  /// Calls visit(variant, how many best, sum of their numbers) for every cut; empties the bins.
  template <class Visit>
  void finish(std::span<const double> row, const Visit& visit) {
    std::vector<std::vector<uint32_t>> inside(lists_);
    for (size_t i = 0; i < row.size(); ++i)
      if (const uint32_t list = bins_[bin_of_[i]].list; list != 0)
        inside[list - 1].push_back(static_cast<uint32_t>(i));
    const auto first = bins_.begin();
    std::fill(first + static_cast<std::ptrdiff_t>(lowest_),
              first + static_cast<std::ptrdiff_t>(highest_) + 1, Bin{});
    const auto better = [row](uint32_t a, uint32_t b) {
      return row[a] != row[b] ? row[a] > row[b] : a > b;
    };
    for (const Cut& cut : cuts_) {
      auto& list = inside[cut.list];
      const auto end = list.begin() + cut.from_bin;
      std::nth_element(list.begin(), end - 1, list.end(), better);
      const uint64_t places = std::accumulate(list.begin(), end, cut.places);
      visit(cut.variant, cut.count, static_cast<int64_t>(places));
    }
  }

 private:
  struct Bin {
    uint32_t count = 0;
    uint32_t list = 0;    // 1 + number of the list its entries are wanted in; 0: none
    uint64_t places = 0;  // sum of the entries' numbers
  };
  struct Cut {
    size_t variant;
    int64_t count;
    int64_t from_bin;  // how many of them are in the bin where they end
    uint64_t places;   // sum over the better bins
    uint32_t list;
  };
  std::vector<Bin> bins_ = std::vector<Bin>(size_t{1} << 16);  // all empty between rows
  std::vector<uint16_t> bin_of_;
  size_t lowest_ = 0, highest_ = 0, at_ = 0;
  int64_t above_ = 0;
  uint64_t places_ = 0;
  uint32_t lists_ = 0;
  std::vector<Cut> cuts_;
};

}  // namespace

DriftTracker::DriftTracker(std::vector<int64_t> best, int64_t rows)
    : best_(std::move(best)), ascending_(best_.size()), counts_(rows, std::ssize(best_)),
      sums_(rows, std::ssize(best_)) {
  std::iota(ascending_.begin(), ascending_.end(), size_t{0});
  std::stable_sort(ascending_.begin(), ascending_.end(),
                   [this](size_t a, size_t b) { return best_[a] < best_[b]; });
}

void DriftTracker::add(int64_t j, std::span<const double> row) {
  static thread_local RowBins bins;
  if (row.empty()) return;
  bins.fill(row);
  for (const size_t variant : ascending_)
    if (best_[variant] > 0)
      bins.cut(variant, std::min(best_[variant], static_cast<int64_t>(row.size())));
  const auto counts = counts_.row(j), sums = sums_.row(j);
  bins.finish(row, [&](size_t variant, int64_t count, int64_t sum) {
    counts[variant] = count;
    sums[variant] = sum;
  });
}

PositionDrift DriftTracker::drift(size_t variant) const {
  PositionDrift drift(sums_.rows());
  const auto column = static_cast<int64_t>(variant);
  for (int64_t j = 0; j < sums_.rows(); ++j) drift.add(j, counts_(j, column), sums_(j, column));
  return drift;
}

}  // namespace kvsim
