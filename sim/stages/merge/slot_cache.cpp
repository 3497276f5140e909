#include "sim/stages/merge/slot_cache.hpp"

#include <algorithm>
#include <iterator>

namespace kvsim {

void SlotCache::absorb(int64_t from, int64_t into) {
  const auto listed = [this](int64_t slot) {
    const auto& entries = members(slot);
    return entries.empty() ? std::vector<uint32_t>{static_cast<uint32_t>(position(slot))} : entries;
  };
  const std::vector<uint32_t> a = listed(from);
  const std::vector<uint32_t> b = listed(into);
  std::vector<uint32_t> all;
  all.reserve(a.size() + b.size());
  std::ranges::merge(a, b, std::back_inserter(all));
  members_[static_cast<size_t>(into)] = std::move(all);
}

void SlotCache::set_bias(int64_t slot, int x, double bias) {
  if (bias_.empty()) bias_.assign(static_cast<size_t>(size() * heads_), 0.0);
  bias_[static_cast<size_t>(slot * heads_ + x)] = bias;
}

void SlotCache::reserve(int64_t slots) {
  const auto count = static_cast<size_t>(slots);
  position_.reserve(count);
  row_.reserve(count);
  k_.reserve(count * width(key_dim_));
  v_.reserve(count * width(value_dim_));
  members_.reserve(count);
}

void SlotCache::append(int64_t position) {
  row_.push_back(size());
  position_.push_back(position);
  k_.resize(k_.size() + width(key_dim_));
  v_.resize(v_.size() + width(value_dim_));
  members_.emplace_back();
  if (!bias_.empty()) bias_.insert(bias_.end(), static_cast<size_t>(heads_), 0.0);
  if (estimates_) estimates_->append();
}

void SlotCache::erase(std::span<const int64_t> slots) {
  if (slots.empty()) return;
  std::vector<int64_t> gaps;
  for (const int64_t slot : slots) gaps.push_back(row(slot));
  std::ranges::sort(gaps);
  erase_rows(position_, 1, slots);
  erase_rows(row_, 1, slots);
  fill_gaps(gaps);
  erase_rows(members_, 1, slots);
  if (!bias_.empty()) erase_rows(bias_, heads_, slots);
  if (estimates_) estimates_->erase(slots);
}

/// Rows behind the number of slots move to the gaps before it.
void SlotCache::fill_gaps(std::span<const int64_t> gaps) {
  auto gap = gaps.begin();
  const auto last = std::ranges::lower_bound(gaps, size());
  for (auto row = row_.begin(); gap != last; ++row) {
    if (*row < size()) continue;
    std::copy_n(k_.data() + *row * key_dim_, key_dim_, k_.data() + *gap * key_dim_);
    std::copy_n(v_.data() + *row * value_dim_, value_dim_, v_.data() + *gap * value_dim_);
    *row = *gap++;
  }
  k_.resize(position_.size() * width(key_dim_));
  v_.resize(position_.size() * width(value_dim_));
}

}  // namespace kvsim
