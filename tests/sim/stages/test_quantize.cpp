#include <catch2/catch.hpp>

#include "sim/stages/stages.hpp"

using namespace kvsim;

namespace {

Settings settings(const char* kind, const char* bits, const char* group, const char* residual) {
  Settings values;
  values.set("quantize", kind);
  values.set("quant_bits", bits);
  values.set("quant_group", group);
  values.set("quant_residual", residual);
  return values;
}

Table<float> table(int64_t rows, std::vector<float> values) {
  Table<float> result(rows, static_cast<int64_t>(values.size()) / rows);
  result.values() = std::move(values);
  return result;
}

}  // namespace

TEST_CASE("two bits per token round to four levels of each entry's own range",
          "[quantize][stages]") {
  // Entry 0: 0..3, step 1: 0, 1, 2, 3 and 0.5 -> 0 (to even), 1.5 -> 2, 2.5 -> 2.
  Table<float> k = table(2, {0, 0.5f, 1.5f, 3, -1, -1, -1, -1});
  Table<float> v = table(2, {0, 2.5f, 3, 0, 1, 4, 1, 2.4f});
  const Settings values = settings("per-token", "2", "4", "0");
  quantizer(values).apply(values, {.k = k, .v = v, .positions = {}});
  CHECK(k.values() == std::vector<float>{0, 0, 2, 3, -1, -1, -1, -1});  // a constant stays
  CHECK(v.values() == std::vector<float>{0, 2, 3, 0, 1, 4, 1, 2});
}

TEST_CASE("kivi rounds keys along entries in whole residual blocks, values along channels",
          "[quantize][stages]") {
  // Five entries, groups of 2, residual 2: keys of entries 0..3, values of entries 0..2.
  const Settings values = settings("kivi", "1", "2", "2");
  Table<float> k = table(5, {0, 10, 1, 11, 2, 12, 3, 13, 4.4f, 14.4f});
  Table<float> v = table(5, {0, 1, 0.2f, 0.3f, 5, 5, 0.6f, 0.7f, 0.8f, 0.9f});
  const Table<float> v_before = v;
  quantizer(values).apply(values, {.k = k, .v = v, .positions = {}});
  // One bit: every number of a group goes to its lowest or highest; these are both already.
  CHECK(k.values() == std::vector<float>{0, 10, 1, 11, 2, 12, 3, 13, 4.4f, 14.4f});
  CHECK(v.values() == v_before.values());
  const QuantizedCount count = quantizer(values).count(values, 5, 2, 2);
  CHECK(count.numbers == 4 * 2 + 3 * 2);
  CHECK(count.bits == (4 * 2 + 3 * 2) + 32 * (2 * 2 + 3));
}

TEST_CASE("per channel, groups run over entries and a last group may be short",
          "[quantize][stages]") {
  // Groups of 2 with no residual over three entries: {0, 3} and {10} of the channel.
  const Settings values = settings("per-channel", "1", "2", "0");
  Table<float> k = table(3, {0, 3, 10});
  Table<float> v = table(3, {1, 2, 7});
  quantizer(values).apply(values, {.k = k, .v = v, .positions = {}});
  CHECK(k.values() == std::vector<float>{0, 3, 10});
  const QuantizedCount count = quantizer(values).count(values, 3, 1, 1);
  CHECK(count.numbers == 6);
  CHECK(count.bits == 6 + 32 * 4);
}

TEST_CASE("fewer entries than the residual stay as they are", "[quantize][stages]") {
  const Settings values = settings("kivi", "4", "32", "128");
  CHECK(quantizer(values).count(values, 127, 64, 64).numbers == 0);
  CHECK(quantizer(values).count(values, 130, 64, 64).numbers == 128 * 64 + 2 * 64);
  CHECK(quantizer(values).fault(values).empty());
  const Settings uneven = settings("kivi", "4", "32", "100");
  CHECK_FALSE(quantizer(uneven).fault(uneven).empty());
  const Settings tokens = settings("per-token", "4", "32", "100");
  CHECK(quantizer(tokens).fault(tokens).empty());
}
