#pragma once
#include <algorithm>
#include <bit>
#include <cassert>
#include <cstdint>
#include <limits>
#include <memory>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

namespace kvsim {

/// Statistic of nothing: NaN, which results hold as a missing value.
inline constexpr double kUndefined = std::numeric_limits<double>::quiet_NaN();

/// Is the value in the list?
template <class List, class Value>
bool contains(const List& list, const Value& value) {
  return std::ranges::find(list, value) != std::ranges::end(list);
}

/// The `count` numbers from `first` on, ascending.
template <class T>
std::vector<T> ascending(int64_t count, T first = 0) {
  std::vector<T> all(count);
  std::iota(all.begin(), all.end(), first);
  return all;
}

/// The one order of entries (policies.md 10): higher scores first, of equals the more recent.
template <class Scores>
auto best_first(const Scores& scores) {
  return
      [&scores](auto a, auto b) { return scores[a] != scores[b] ? scores[a] > scores[b] : a > b; };
}

/// A row-major table [rows][columns] that owns its values.
template <class T>
class Table {
 public:
  Table() = default;
  Table(int64_t rows, int64_t columns, T value = T())
      : rows_(rows), columns_(columns), values_(rows * columns, value) {}

  int64_t rows() const { return rows_; }
  int64_t columns() const { return columns_; }
  bool empty() const { return values_.empty(); }

  std::span<T> row(int64_t r) {
    assert(r >= 0 && r < rows_);
    return {values_.data() + r * columns_, static_cast<size_t>(columns_)};
  }
  std::span<const T> row(int64_t r) const {
    assert(r >= 0 && r < rows_);
    return {values_.data() + r * columns_, static_cast<size_t>(columns_)};
  }
  T& operator()(int64_t r, int64_t c) { return row(r)[c]; }
  const T& operator()(int64_t r, int64_t c) const { return row(r)[c]; }

  T* data() { return values_.data(); }
  const T* data() const { return values_.data(); }
  std::vector<T>& values() { return values_; }
  const std::vector<T>& values() const { return values_; }

 private:
  int64_t rows_ = 0;
  int64_t columns_ = 0;
  std::vector<T> values_;
};

/// Memory that is written before it is read, kept from one use to the next.
template <class T>
class Buffer {
 public:
  /// Room for at least `count` values; what was there is lost when it grows.
  T* reserve(int64_t count) {
    if (count > room_) {
      values_.reset();
      values_ = std::make_unique_for_overwrite<T[]>(count);
      room_ = count;
    }
    return values_.get();
  }
  T* data() { return values_.get(); }
  const T* data() const { return values_.get(); }

 private:
  std::unique_ptr<T[]> values_;
  int64_t room_ = 0;
};

/// Half-open range of positions or columns.
struct Range {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
  bool contains(int64_t i) const { return i >= begin && i < end; }
  friend bool operator==(const Range&, const Range&) = default;
};

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

/// A number that is larger for larger values; -0 is 0. Not for NaN.
inline uint64_t sortable_bits(double value) {
  constexpr uint64_t kSign = uint64_t{1} << 63;
  const uint64_t bits = std::bit_cast<uint64_t>(value + 0.0);
  return (bits & kSign) != 0 ? ~bits : bits | kSign;
}

}  // namespace kvsim
