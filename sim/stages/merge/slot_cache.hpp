#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "sim/core/array.hpp"
#include "sim/stages/estimate/estimate.hpp"

namespace kvsim {

/// Cache of one owner (a KV head, or a query head with granularity=query): slots in ascending
/// position. A slot is one entry until others are merged into it. Keys and values lie in rows, as
/// many as there are slots, in any order: where slots leave, the last rows fill the gaps.
class SlotCache {
 public:
  SlotCache(int owner, int first_head, int heads, int64_t key_dim, int64_t value_dim)
      : owner_(owner), first_head_(first_head), heads_(heads), key_dim_(key_dim),
        value_dim_(value_dim) {}

  int owner() const { return owner_; }
  int first_head() const { return first_head_; }  ///< query heads that read it: first_head ..
  int heads() const { return heads_; }            ///< .. first_head + heads - 1
  int64_t size() const { return static_cast<int64_t>(position_.size()); }
  int64_t key_dim() const { return key_dim_; }
  int64_t value_dim() const { return value_dim_; }
  const std::vector<int64_t>& positions() const { return position_; }
  int64_t position(int64_t slot) const { return position_[static_cast<size_t>(slot)]; }
  std::span<float> key(int64_t slot) { return {k_.data() + row(slot) * key_dim_, width(key_dim_)}; }
  std::span<const float> key(int64_t slot) const {
    return {k_.data() + row(slot) * key_dim_, width(key_dim_)};
  }
  std::span<float> value(int64_t slot) {
    return {v_.data() + row(slot) * value_dim_, width(value_dim_)};
  }
  std::span<const float> value(int64_t slot) const {
    return {v_.data() + row(slot) * value_dim_, width(value_dim_)};
  }
  int64_t row(int64_t slot) const { return row_[static_cast<size_t>(slot)]; }
  const float* keys() const { return k_.data(); }    ///< [rows][d]
  const float* values() const { return v_.data(); }  ///< [rows][dv]

  /// Entries merged into a slot, ascending, its own included; empty while it is one entry alone.
  const std::vector<uint32_t>& members(int64_t slot) const {
    return members_[static_cast<size_t>(slot)];
  }
  /// Number of entries in the slot: its votes p.
  double entries(int64_t slot) const {
    return members(slot).empty() ? 1.0 : static_cast<double>(members(slot).size());
  }
  /// The entries of `from` now belong to `into`; `from` stays until it is erased.
  void absorb(int64_t from, int64_t into);

  /// b^h of the slot for head x of the owner's; 0 until first set.
  double bias(int64_t slot, int x) const {
    return bias_.empty() ? 0 : bias_[static_cast<size_t>(slot * heads_ + x)];
  }
  void set_bias(int64_t slot, int x, double bias);

  Estimates* estimates() const { return estimates_.get(); }  ///< null: nobody asked for any
  void estimate_with(std::unique_ptr<Estimates> estimates) { estimates_ = std::move(estimates); }

  void reserve(int64_t slots);
  void append(int64_t position);               ///< key and value are the caller's to write
  void erase(std::span<const int64_t> slots);  ///< ascending

 private:
  static size_t width(int64_t dim) { return static_cast<size_t>(dim); }
  void fill_gaps(std::span<const int64_t> gaps);

  int owner_;
  int first_head_;
  int heads_;
  int64_t key_dim_;
  int64_t value_dim_;
  std::vector<int64_t> position_;
  std::vector<int64_t> row_;  ///< of each slot
  std::vector<float> k_;
  std::vector<float> v_;
  std::vector<std::vector<uint32_t>> members_;
  std::vector<double> bias_;  ///< [slots][heads], or empty
  std::unique_ptr<Estimates> estimates_;
};

}  // namespace kvsim
