// Sorting entries by score: radix sort on the bits of the scores, a digit at a time from the
// lowest, which keeps the order of equal digits.
#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "sim/core/parallel.hpp"
#include "sim/core/sortable_bits.hpp"
#include "sim/policy/selection.hpp"

namespace kvsim {
namespace {

constexpr int kDigitBits = 11;
constexpr int kDigits = 6;  // 6 * 11 >= 64
constexpr size_t kValues = size_t{1} << kDigitBits;

struct Item {
  uint64_t key;  // smaller for larger scores
  uint32_t entry;
};

size_t digit(uint64_t key, int number) { return key >> (number * kDigitBits) & (kValues - 1); }

/// Sorts by key, equal ones as they come.
void radix_sort(std::vector<Item>& items) {
  std::vector<Item> other(items.size());
  std::vector<std::array<uint32_t, kValues>> counts(kDigits);
  for (auto& count : counts) count.fill(0);
  for (const Item& item : items)
    for (int d = 0; d < kDigits; ++d) ++counts[static_cast<size_t>(d)][digit(item.key, d)];
  for (int d = 0; d < kDigits; ++d) {
    auto& count = counts[static_cast<size_t>(d)];
    if (count[digit(items.front().key, d)] == items.size()) continue;  // all the same
    uint32_t position = 0;
    for (uint32_t& value : count) position += std::exchange(value, position);
    for (const Item& item : items) other[count[digit(item.key, d)]++] = item;
    items.swap(other);
  }
}

}  // namespace

Ranking rank(const Table<double>& score, const Table<double>& raw, bool tie_by_raw,
             const std::vector<uint8_t>& candidate) {
  Ranking ranking{.score = &score, .raw = tie_by_raw && !raw.empty() ? &raw : nullptr, .order = {}};
  ranking.order.resize(static_cast<size_t>(score.rows()));
  std::vector<uint32_t> candidates;  // the more recent first
  for (size_t i = candidate.size(); i-- > 0;)
    if (candidate[i]) candidates.push_back(static_cast<uint32_t>(i));
  if (candidates.empty()) return ranking;
  parallel_for(score.rows(), [&](int64_t owner) {
    const auto s = score.row(owner);
    std::vector<Item> items;
    items.reserve(candidates.size());
    for (const uint32_t i : candidates) items.push_back({~sortable_bits(s[i]), i});
    radix_sort(items);
    if (ranking.raw != nullptr) {
      const auto r = ranking.raw->row(owner);
      for (auto first = items.begin(); first != items.end();) {
        const auto last = std::find_if(first, items.end(),
                                       [&](const Item& item) { return item.key != first->key; });
        std::stable_sort(first, last,
                         [r](const Item& a, const Item& b) { return r[a.entry] > r[b.entry]; });
        first = last;
      }
    }
    auto& order = ranking.order[static_cast<size_t>(owner)];
    order.reserve(items.size());
    for (const Item& item : items) order.push_back(item.entry);
  });
  return ranking;
}

}  // namespace kvsim
