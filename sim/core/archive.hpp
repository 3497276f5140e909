#pragma once
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "sim/core/array.hpp"
#include "sim/core/error.hpp"

namespace kvsim {

/// A state as bytes, for another run of the program to go on with. Its owner gives every member to
/// an archive in a fixed order; the archive knows whether that writes or reads, so that both are
/// one function and cannot drift apart. Numbers are the machine's own. Whoever keeps the bytes sees
/// to it that they are whole and of the same program; too few of them are bad data.
class Archive {
 public:
  Archive() = default;                 ///< writes
  explicit Archive(std::string bytes)  ///< reads
      : bytes_(std::move(bytes)), reads_(true) {}

  bool reads() const { return reads_; }
  const std::string& bytes() const { return bytes_; }

  template <class T>
  requires std::is_arithmetic_v<T>
  void exchange(T& number) { raw(&number, sizeof number); }
  template <class T>
  requires std::is_arithmetic_v<T>
  void exchange(std::span<T> numbers) {  // of a length that both sides know
    raw(numbers.data(), numbers.size_bytes());
  }
  template <class T>
  void exchange(std::vector<T>& items) {
    exchange_size(items);
    if constexpr (std::is_arithmetic_v<T>) {
      exchange(std::span(items));
    } else {
      for (T& item : items) exchange(item);
    }
  }
  template <class T>
  void exchange(Table<T>& table) {
    int64_t rows = table.rows(), columns = table.columns();
    exchange(rows);
    exchange(columns);
    if (reads_) {
      expect(rows, 0);
      expect(columns, static_cast<size_t>(rows) * sizeof(T));
      table = Table<T>(rows, columns);
    }
    exchange(std::span(table.values()));
  }
  /// Only how many there are; the caller exchanges each.
  template <class T>
  void exchange_size(std::vector<T>& items) {
    auto count = static_cast<int64_t>(items.size());
    exchange(count);
    if (!reads_) return;
    expect(count, std::is_arithmetic_v<T> ? sizeof(T) : 1);
    items.resize(static_cast<size_t>(count));
  }

 private:
  void raw(void* data, size_t size) {
    if (!reads_) {
      bytes_.append(static_cast<const char*>(data), size);
      return;
    }
    if (size > bytes_.size() - at_) too_short();
    if (size > 0) std::memcpy(data, bytes_.data() + at_, size);
    at_ += size;
  }
  /// Refuses a count of items of at least `least` bytes each that cannot be there.
  void expect(int64_t count, size_t least) const {
    if (count < 0 || (least > 0 && static_cast<size_t>(count) > (bytes_.size() - at_) / least))
      too_short();
  }
  [[noreturn]] static void too_short() { bad_data({.what = "a kept state is too short"}); }

  std::string bytes_;
  size_t at_ = 0;
  bool reads_ = false;
};

}  // namespace kvsim
