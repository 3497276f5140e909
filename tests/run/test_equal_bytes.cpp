// Budgets in bytes, and what every form of a cache holds, counted from the saved masks.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>

#include "run/study/study.hpp"
#include "tests/support/study_case.hpp"

using namespace kvsim;
using namespace kvsim::test;

namespace {

constexpr int64_t kEqualPrompt = 83, kEqualSteps = 5, kEqualLayers = 3, kEqualHeads = 2,
                  kEqualWidth = 32;
constexpr double kEqualSlot = 2 * kEqualWidth;  // 16 + 16 numbers of two bytes

struct EqualTrace : SynthTrace {
  EqualTrace()
      : SynthTrace({.prompt = kEqualPrompt,
                    .steps = kEqualSteps,
                    .num_layers = kEqualLayers,
                    .heads = 2 * kEqualHeads,
                    .kv_heads = kEqualHeads,
                    .head_dim = kEqualWidth / 2,
                    .value_dim = kEqualWidth / 2,
                    .hidden = 24}) {}
  StudyOptions options(const std::vector<std::string>& records,
                       const std::vector<std::string>& budgets) const {
    StudyOptions options = options_for(records, budgets, info().layers);
    options.wo_steps = 1;
    options.save_keep = true;
    return options;
  }
  Dataset run(const StudyOptions& options) const { return study_of(*this, options); }

  std::unique_ptr<Backend> backend = make_cpu_backend();
};

const std::vector<std::string> kHeldRecords = {
    "snapkv,window=4",
    "adakv,window=4",
    "snapkv,window=4,allocate=composite",
    "snapkv,window=4,union=mean,block=16",
    "tova:official",
    "snapkv,window=4,quantize=per-token,quant_residual=0",
    "keepkv,window=4"};

double at(const Dataset& results, const std::string& variable, size_t policy, size_t budget) {
  return results.row(variable, {static_cast<int64_t>(policy), static_cast<int64_t>(budget)})[0];
}

TEST_CASE("bytes of every form, counted from the masks", "[equal-bytes]") {
  const EqualTrace traced;
  const Dataset results = traced.run(
      traced.options({kHeldRecords.begin(), kHeldRecords.begin() + 4}, {"0.2", "0.5"}));
  for (size_t p = 0; p < 4; ++p)
    for (size_t b = 0; b < 2; ++b) {
      CAPTURE(kHeldRecords[p], b);
      double slots = 0, padded = 0, pages = 0, in_place = 0;
      for (int64_t l = 0; l < kEqualLayers; ++l) {
        std::vector<double> counts;
        std::vector<bool> held(kEqualPrompt / 16 + 1, false);
        for (int64_t h = 0; h < kEqualHeads; ++h) {
          const auto mask = results.row<uint8_t>(
              "kept_mask", {static_cast<int64_t>(p), static_cast<int64_t>(b), l, h});
          counts.push_back(static_cast<double>(std::ranges::count(mask, 1)));
          for (size_t i = 0; i < mask.size(); ++i)
            if (mask[i] == 1) held[i / 16] = true;
        }
        for (const double count : counts) {
          slots += count;
          pages += std::ceil(count / 16);
        }
        padded += kEqualHeads * std::ranges::max(counts);
        in_place += static_cast<double>(std::ranges::count(held, true));
      }
      constexpr double lengths = 4 * kEqualLayers * kEqualHeads;
      CHECK(at(results, "bytes_flattened", p, b) == slots * kEqualSlot + lengths);
      CHECK(at(results, "bytes_padded", p, b) == padded * kEqualSlot);
      CHECK(at(results, "bytes_paged", p, b) == Approx(pages * (16 * kEqualSlot + 4)));
      CHECK(at(results, "bytes_in_place", p, b) ==
            Approx(in_place * (16 * kEqualHeads * kEqualSlot + 4)));
      CHECK(at(results, "bytes_peak", p, b) ==
            (slots + kEqualSteps * kEqualLayers * kEqualHeads) * kEqualSlot + lengths);
      CHECK(at(results, "budget_entries", p, b) == (b == 0 ? 16 : 41));
    }
}

TEST_CASE("a cache that evicts at every step holds one slot more at its peak", "[equal-bytes]") {
  const EqualTrace traced;
  const Dataset results = traced.run(
      traced.options({"tova:official", "snapkv,schedule=periodic,period=2,window=4"}, {"0.2"}));
  const double first = 16.0 * kEqualLayers * kEqualHeads * kEqualSlot +
                       4.0 * kEqualLayers * kEqualHeads;
  CHECK(at(results, "bytes_flattened", 0, 0) == first);
  CHECK(at(results, "bytes_peak", 0, 0) == first + kEqualLayers * kEqualHeads * kEqualSlot);
  CHECK(at(results, "bytes_flattened", 1, 0) == first);
  CHECK(at(results, "bytes_peak", 1, 0) == first + 2 * kEqualLayers * kEqualHeads * kEqualSlot);
}

TEST_CASE("equal bytes are the most entries that fit", "[equal-bytes]") {
  const EqualTrace traced;
  const std::vector<std::string> shares = {"0.25", "0.45", "0.7"};
  for (const std::string& form : byte_forms()) {
    StudyOptions options = traced.options(kHeldRecords, shares);
    options.equal_bytes = form;
    const auto too_large = make_bytes_equal(traced, *traced.backend, options);
    CHECK(too_large.empty());
    std::string variable = "bytes_" + form;
    std::ranges::replace(variable, '-', '_');
    const Dataset results = traced.run(options);
    const double full = kEqualPrompt * kEqualLayers * kEqualHeads * kEqualSlot;
    for (size_t p = 0; p < kHeldRecords.size(); ++p)
      for (size_t b = 0; b < shares.size(); ++b) {
        CAPTURE(form, kHeldRecords[p], shares[b]);
        const double target = options.budgets[b].ratio(kEqualPrompt) * full;
        CHECK(at(results, variable, p, b) <= target);
        const auto entries = static_cast<int64_t>(at(results, "budget_entries", p, b));
        CHECK(entries == options.records[p].own_budgets[b].entries(kEqualPrompt));
        if (entries == kEqualPrompt) continue;
        const Dataset more = traced.run(
            traced.options({kHeldRecords[p]}, {std::to_string(entries + 1)}));
        CHECK(at(more, variable, 0, 0) > target);
      }
  }
}

TEST_CASE("what cannot hold so little is named", "[equal-bytes]") {
  const EqualTrace traced;
  StudyOptions options = traced.options({"full", "snapkv,window=4"}, {"0.5"});
  CHECK(make_bytes_equal(traced, *traced.backend, options).empty());  // nobody asked
  options.equal_bytes = "flattened";
  const auto lines = make_bytes_equal(traced, *traced.backend, options);
  REQUIRE(lines.size() == 1);
  CHECK(lines[0] == "full holds more than 0.5 of the full cache's bytes");
  CHECK(options.records[0].own_budgets[0].entries(kEqualPrompt) == kEqualPrompt);
}

}  // namespace
