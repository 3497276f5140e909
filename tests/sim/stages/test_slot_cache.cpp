#include <algorithm>
#include <catch2/catch.hpp>
#include <set>
#include <vector>

#include "sim/stages/merge/merge.hpp"

namespace kvsim::test {
namespace {

constexpr int64_t kKey = 3, kValue = 2;

/// The newest slot; its key and value tell its position.
void append(SlotCache& cache, int64_t position) {
  cache.append(position);
  std::ranges::fill(cache.key(cache.size() - 1), static_cast<float>(position));
  std::ranges::fill(cache.value(cache.size() - 1), static_cast<float>(-position));
}

void check(const SlotCache& cache, const std::vector<int64_t>& positions) {
  REQUIRE(cache.positions() == positions);
  std::set<int64_t> rows;
  for (int64_t slot = 0; slot < cache.size(); ++slot) {
    const auto expected = static_cast<float>(cache.position(slot));
    CHECK(std::ranges::all_of(cache.key(slot), [&](float x) { return x == expected; }));
    CHECK(std::ranges::all_of(cache.value(slot), [&](float x) { return x == -expected; }));
    CHECK(cache.keys() + cache.row(slot) * kKey == cache.key(slot).data());
    CHECK(cache.values() + cache.row(slot) * kValue == cache.value(slot).data());
    rows.insert(cache.row(slot));
  }
  if (rows.empty()) return;
  CHECK(std::ssize(rows) == cache.size());  // every row has one slot
  CHECK(*rows.rbegin() == cache.size() - 1);
}

}  // namespace

TEST_CASE("slots keep their keys and values while others come and go", "[merge][stages]") {
  SlotCache cache(0, 0, 1, kKey, kValue);
  for (int64_t position = 0; position < 8; ++position) append(cache, position);
  check(cache, {0, 1, 2, 3, 4, 5, 6, 7});
  cache.erase(std::vector<int64_t>{});
  check(cache, {0, 1, 2, 3, 4, 5, 6, 7});
  cache.erase(std::vector<int64_t>{1});
  check(cache, {0, 2, 3, 4, 5, 6, 7});
  append(cache, 11);
  cache.erase(std::vector<int64_t>{0, 2, 7});
  check(cache, {2, 4, 5, 6, 7});
  append(cache, 12);
  append(cache, 13);
  cache.erase(std::vector<int64_t>{4, 5});
  check(cache, {2, 4, 5, 6, 13});
  cache.erase(std::vector<int64_t>{0, 1, 2, 3, 4});
  check(cache, {});
  append(cache, 20);
  check(cache, {20});
}

}  // namespace kvsim::test
