#include <catch2/catch.hpp>
#include <cmath>

#include "analysis/memory_model.hpp"

using namespace kvsim;

namespace {

// Hkv 2, g 2, d 4, dv 2, n 10, 2 bytes per number: a slot has 12 bytes.
const CacheShape kShape{2, 2, 4, 2, 10, 2};

KeptSets kept_of(std::vector<std::vector<uint32_t>> owners, bool per_query_head = false) {
  KeptSets kept;
  kept.owners = std::move(owners);
  kept.per_query_head = per_query_head;
  return kept;
}

}  // namespace

TEST_CASE("ragged memory counts each head's slots, grouped memory the longest head's",
          "[analysis]") {
  MemoryModel model;
  model.add_layer(kShape, kept_of({{0, 1, 2}, {4}}), {});
  model.add_layer(kShape, kept_of({{0, 1}, {2, 3}}), {});
  const MemoryUse use = model.use();
  CHECK(use.entries_kv == 8);
  CHECK(use.bytes_ragged == 8 * 12 + 2 * 2 * 4);
  CHECK(use.bytes_grouped == (2 * 3 + 2 * 2) * 12);
  CHECK(use.bytes_full == 2 * 2 * 10 * 12);
  CHECK(use.compression == Approx(480.0 / 112));
  CHECK(use.realised_ratio == Approx(8.0 / 40));
  CHECK(use.realised_ratio_min == Approx(0.1));
  CHECK(use.realised_ratio_max == Approx(0.3));
  CHECK(std::isnan(use.entries_query));
  CHECK(std::isnan(use.bytes_quantized));
  CHECK(use.flops == 2.0 * 2 * 8 * 6);  // g * slots * (d + dv) multiply-adds
}

TEST_CASE("query heads that share a KV head share the slots they both keep", "[analysis]") {
  MemoryModel model;
  model.add_layer(kShape, kept_of({{0, 1}, {1, 2}, {5}, {5}}, true), {});
  CHECK(model.use().entries_kv == 3 + 1);
  CHECK(model.use().entries_query == 6);
}

TEST_CASE("query heads do not share the slots that they merged", "[analysis]") {
  // Heads 0 and 1 of the first KV head both keep 1; head 0 merged others into it, so it is held
  // twice, beside 0, 2 (shared) and 3 (head 1's merged one): 5 slots. The second: 5 twice, merged.
  KeptSets kept = kept_of({{0, 1, 2}, {1, 2, 3}, {5}, {5}}, true);
  kept.own = {{1}, {3}, {5}, {5}};
  MemoryModel model;
  model.add_layer(kShape, kept, {});
  CHECK(model.use().entries_kv == 4 + 1);  // entries, however many slots stand for them
  CHECK(model.use().realised_ratio_max == Approx(0.4));
  CHECK(model.use().bytes_ragged == 7 * 12 + 2 * 4);
  CHECK(model.use().flops == 2.0 * 6 * (3 * 2 + 2 + 2));  // a merged slot is read by one head
}

TEST_CASE("int4 in groups of 32 costs five bits per number", "[analysis]") {
  // One head of 64 slots, everything quantised: 64 * 6 numbers.
  const CacheShape shape{1, 1, 4, 2, 64, 2};
  std::vector<uint32_t> all(64);
  for (uint32_t i = 0; i < 64; ++i) all[i] = i;
  MemoryModel model;
  model.add_layer(shape, kept_of({all}), {{384, 12, 4}});
  CHECK(model.use().bytes_quantized == 384 * 5 / 8);
  CHECK(model.use().compression == Approx(16.0 / 5));
  MemoryModel half;  // one number stays at 16 bits; bits round up to whole bytes
  half.add_layer(shape, kept_of({all}), {{383, 12, 4}});
  CHECK(half.use().bytes_quantized == std::ceil((383 * 4 + 12 * 32 + 16) / 8.0));
}

TEST_CASE("the roofline takes the slower of memory and arithmetic", "[analysis]") {
  CHECK(roofline_time(100, 10, 50, 20) == 2);
  CHECK(roofline_time(100, 100, 50, 20) == 5);
}
