#include <catch2/catch.hpp>
#include <cmath>
#include <numeric>

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

std::vector<uint32_t> first_entries(size_t count) {
  std::vector<uint32_t> entries(count);
  std::iota(entries.begin(), entries.end(), 0u);
  return entries;
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
  const auto all = first_entries(64);
  MemoryModel model;
  model.add_layer(shape, kept_of({all}), {{384, 384 * 4 + 12 * 32}});
  CHECK(model.use().bytes_quantized == 384 * 5 / 8);
  CHECK(model.use().compression == Approx(16.0 / 5));
  MemoryModel half;  // one number stays at 16 bits; bits round up to whole bytes
  half.add_layer(shape, kept_of({all}), {{383, 383 * 4 + 12 * 32}});
  CHECK(half.use().bytes_quantized == std::ceil((383 * 4 + 12 * 32 + 16) / 8.0));
}

TEST_CASE("the roofline takes the slower of memory and arithmetic", "[analysis]") {
  CHECK(roofline_time(100, 10, 50, 20) == 2);
  CHECK(roofline_time(100, 100, 50, 20) == 5);
}

TEST_CASE("bytes held: flattened, padded, in pages, in pages where they stand", "[analysis]") {
  // n 40: three pages of positions. Head 0 keeps 17 slots of positions 0..16, head 1 two of them.
  const CacheShape shape{2, 1, 4, 2, 40, 2};
  MemoryModel model;
  model.add_layer(shape, kept_of({first_entries(17), {3, 5}}), {}, 0,
                  {.later = 7, .most_slots = {}});
  const MemoryUse use = model.use();
  CHECK(use.bytes_flattened == (17 + 2) * 12 + 2 * 4);
  CHECK(use.bytes_padded == 2 * 17 * 12);
  CHECK(use.bytes_paged == (2 + 1) * (16 * 12 + 4));       // 17 slots need two pages
  CHECK(use.bytes_in_place == 2 * (16 * 2 * 12 + 4));      // positions 0-15 and 16-31, both heads
  CHECK(use.bytes_peak == (17 + 2 + 2 * 7) * 12 + 2 * 4);  // seven later tokens in each head
}

TEST_CASE("bytes held count scales and side numbers", "[analysis]") {
  // One head of 64 slots of 6 numbers at 4 bits, 12 groups: 192 + 48 bytes; 4 bytes a slot beside.
  const CacheShape shape{1, 1, 4, 2, 64, 2};
  const auto all = first_entries(64);
  MemoryModel model;
  model.add_layer(shape, kept_of({all}), {{384, 384 * 4 + 12 * 32}}, 4,
                  {.later = 0, .most_slots = {70}});
  CHECK(model.use().bytes_side == 64 * 4);
  CHECK(model.use().bytes_flattened == 192 + 48 + 256 + 4);
  CHECK(model.use().bytes_padded == 192 + 48 + 256);
  CHECK(model.use().bytes_paged == 4 * (16 * (192 + 48 + 256) / 64.0 + 4));
  CHECK(model.use().bytes_peak == 192 + 48 + 256 + 4 + 6 * 12);  // six slots more, not rounded yet
}

TEST_CASE("a latent is held where some head keeps its position", "[analysis]") {
  // 5 numbers of 2 bytes a token, 10 tokens. First layer: positions 0, 1, 2, 4; second: 0, 1, 2.
  CacheShape shape = kShape;
  shape.latent_size = 5;
  MemoryModel model;
  model.add_layer(shape, kept_of({{0, 1, 2}, {1, 4}}), {});
  model.add_layer(shape, kept_of({{0, 1}, {1}, {1, 2}, {}}, true), {});
  CHECK(model.use().bytes_latent == (4 + 3) * 5 * 2 + 2 * 4);
  CHECK(model.use().bytes_latent_full == 2 * 10 * 5 * 2);
  MemoryModel none;
  none.add_layer(kShape, kept_of({{0}, {1}}), {});
  CHECK(std::isnan(none.use().bytes_latent));
}

TEST_CASE("a head without slots holds no page", "[analysis]") {
  MemoryModel model;
  model.add_layer(kShape, kept_of({{}, {}}), {});
  CHECK(model.use().bytes_paged == 0);
  CHECK(model.use().bytes_in_place == 0);
  CHECK(model.use().bytes_flattened == 2 * 4);
}
