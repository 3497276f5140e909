// What a merged pair changes, its bounds, and KeepKV's Theorem 5 (metrics.md 3).
#include <catch2/catch.hpp>
#include <cmath>

#include "analysis/formulas.hpp"
#include "sim/core/numbers.hpp"
#include "tests/reference/reference.hpp"
#include "tests/support/random_run.hpp"

using namespace kvsim;
using namespace kvsim::test;

namespace {

using Vector = std::vector<double>;

const MergeBound& bound(const char* name) {
  for (const MergeBound& one : merge_bounds())
    if (one.name == name) return one;
  throw std::logic_error("no such bound");
}

/// Mean over heads first..first+heads-1 of a row of logits: those of the mean query.
Vector mean_logits(const LayerTrace& layer, int first, int heads, int64_t row) {
  Vector mean = reference::logits(layer, first, row);
  for (int h = first + 1; h < first + heads; ++h) {
    const Vector other = reference::logits(layer, h, row);
    for (size_t i = 0; i < mean.size(); ++i) mean[i] += other[i];
  }
  for (double& x : mean) x /= heads;
  return mean;
}

/// The whole of o' - o in plain sums, with the slot's logit (log-weight included).
BoundSample naive(const LayerTrace& layer, const PairMerge& pair, int64_t t, double slot_logit) {
  const int64_t row = std::ranges::lower_bound(layer.info->query_position, t) -
                      layer.info->query_position.begin();
  const Vector logits = mean_logits(layer, pair.first_head, pair.heads, row);
  double sum = 0, sum_slot = std::exp(slot_logit);
  Vector o(pair.value.size(), 0.0), o_slot(pair.value.size(), 0.0);
  for (size_t c = 0; c < o.size(); ++c) o_slot[c] = sum_slot * static_cast<double>(pair.value[c]);
  for (int64_t i = 0; i <= t; ++i) {
    const double w = std::exp(logits[static_cast<size_t>(i)]);
    const Vector v = reference::value(layer, pair.first_head, i);
    const bool member = i == pair.from || i == pair.into;
    sum += w;
    if (!member) sum_slot += w;
    for (size_t c = 0; c < o.size(); ++c) {
      o[c] += w * v[c];
      if (!member) o_slot[c] += w * v[c];
    }
  }
  BoundSample sample;
  for (size_t c = 0; c < o.size(); ++c) o[c] = o_slot[c] / sum_slot - o[c] / sum;
  sample.perturbation = reference::l2(o);
  for (const uint32_t x : {pair.from, pair.into}) {
    const Vector v_x = reference::value(layer, pair.first_head, x);
    for (int64_t i = 0; i <= t; ++i) {
      Vector v = reference::value(layer, pair.first_head, i);
      for (size_t c = 0; c < v.size(); ++c) v[c] -= v_x[c];
      sample.spread = std::max(sample.spread, reference::l2(v));
    }
    const double log_score = x == pair.from ? pair.log_score_from : pair.log_score_into;
    sample.mismatch = std::max(sample.mismatch,
                               std::fabs(1 - std::exp(log_score) / std::exp(logits[x])));
  }
  sample.scale = pair.scale;
  return sample;
}

/// A pair merged by `scale` of Eq. 7 and votes, or (scale 1) by a bias, at exact scores of `row`.
PairMerge merged(const LayerTrace& layer, int first, int heads, uint32_t from, uint32_t into,
                 int64_t row, bool votes) {
  PairMerge pair;
  pair.first_head = first;
  pair.heads = heads;
  pair.from = from;
  pair.into = into;
  pair.merged_at = layer.info->query_position[static_cast<size_t>(row)];
  const Vector logits = mean_logits(layer, first, heads, row);
  pair.log_score_from = logits[from];
  pair.log_score_into = logits[into];
  const double e = std::exp(logits[from]), c = std::exp(logits[into]);
  const double share = e / (e + c);
  const double mean_level = share * logits[from] + (1 - share) * logits[into];
  if (votes) pair.scale = std::log((e + c) / 2) / mean_level;
  pair.log_weight = votes ? std::log(2.0) : std::log(e + c) - mean_level;
  const int kv = first / layer.info->group_size();
  for (int64_t x = 0; x < layer.k.dim(2); ++x)
    pair.key.push_back(static_cast<float>(
        pair.scale * (share * static_cast<double>(element(layer.k, kv, from, x)) +
                      (1 - share) * static_cast<double>(element(layer.k, kv, into, x)))));
  for (int64_t x = 0; x < layer.v.dim(2); ++x)
    pair.value.push_back(
        static_cast<float>(share * static_cast<double>(element(layer.v, kv, from, x)) +
                           (1 - share) * static_cast<double>(element(layer.v, kv, into, x))));
  return pair;
}

std::unique_ptr<RandomRun> run_with(int query_heads, uint64_t seed) {
  return random_run({.query_heads = query_heads,
                     .kv_heads = 2,
                     .d = 11,
                     .dv = 7,
                     .prompt = 21,
                     .later = 10,
                     .logit_spread = 0.4,
                     .seed = seed},
                    {0}, 1);
}

}  // namespace

TEST_CASE("parts of the error: two equal entries of value 0 and 4 beside a third of value 1",
          "[merge]") {
  // Each weighs 1: o = 5/3. A slot of value 2 and weight 1 in the place of both: o' = 3/2.
  const std::vector<double> v_m = {2}, slot = {2}, o = {5.0 / 3};
  const SlotChange mass = slot_change<double, double>(2.0 / 3, std::log(0.5), v_m, slot, o);
  CHECK(mass.value_part == Approx(0));
  CHECK(mass.mass_part == Approx(1.0 / 6));  // (1/2 - 2/3) (2 - 1)
  CHECK(mass.whole == Approx(1.0 / 6));
  // The mass of both, but value 4: o' = 3, all of it by the value.
  const std::vector<double> other = {4};
  const SlotChange value = slot_change<double, double>(2.0 / 3, 0, v_m, other, o);
  CHECK(value.value_part == Approx(4.0 / 3));
  CHECK(value.mass_part == 0);
  // A slot that takes all attention, and one that has none.
  CHECK(slot_change<double, double>(2.0 / 3, 800, v_m, other, o).whole == Approx(4 - 5.0 / 3));
  CHECK(slot_change<double, double>(2.0 / 3, -800, v_m, other, o).whole == Approx(5.0 / 3 - 1));
}

TEST_CASE("parts of the error are the same from the rest itself, and hold where attention is 1",
          "[merge]") {
  const std::vector<double> v_m = {2}, slot = {4}, o = {5.0 / 3}, rest = {1};
  for (const double defect : {-800.0, -3.0, -1e-9, 0.0, 1e-9, 3.0, 800.0}) {
    const SlotChange one = slot_change<double, double>(2.0 / 3, defect, v_m, slot, o);
    const SlotChange other = slot_change_beside<double>(std::log(2.0), defect, v_m, slot, rest);
    CHECK(other.value_part == Approx(one.value_part));
    CHECK(other.mass_part == Approx(one.mass_part));
    CHECK(other.whole == Approx(one.whole));
  }
  // All but e^-40 of the attention; the slot has e^-50 of that mass, so the rest takes over.
  const double on_slot = std::exp(-10) / (1 + std::exp(-10));
  const SlotChange lost = slot_change_beside<double>(40, -50, v_m, slot, rest);
  CHECK(lost.value_part == Approx(2 * on_slot));
  CHECK(lost.mass_part == Approx(1 - on_slot));
}

TEST_CASE("bounds are the printed formulas", "[merge]") {
  const BoundSample sample{0, 2, 0.6, 0.5};
  CHECK(bound("paper").value(sample) == Approx(2 * 0.6 * 1.6 * 2 / 0.16));
  CHECK(bound("bias").value(sample) == Approx(2 * 2 * (1 - 0.8) / 0.6));
  const double q = std::pow(0.4, -1.5);
  CHECK(bound("scale").value(sample) ==
        Approx(2 * ((1 - 0.8) / 0.6 + (std::sqrt(q) - 1) / (std::sqrt(q) + 1))));
  for (const MergeBound& one : merge_bounds()) CHECK(one.value({1, 2, 0, 1}) == 0);
}

TEST_CASE("shares and medians of bounds count what they say", "[merge]") {
  // Bias bounds: 0 at mismatch 0, 2/3 at 0.6; the last is not applicable.
  const std::vector<BoundSample> samples = {
      {0, 1, 0, 1}, {0.5, 1, 0.6, 1}, {1, 1, 0.6, 1}, {0.1, 1, 0, 1}, {9, 1, 1.5, 1}};
  const BoundSummary summary = summarize(bound("bias"), samples);
  CHECK(summary.pairs == 5);
  CHECK(summary.applicable == Approx(0.8));
  CHECK(summary.violated == Approx(0.5));  // 1 > 2/3, and 0.1 > 0
  CHECK(summary.ratio == Approx((0.75 + 1.5) / 2));
  CHECK(summary.perturbation == Approx(0.5));
  CHECK(std::isnan(summarize(bound("bias"), {}).violated));
}

TEST_CASE("samples of merged pairs are what plain sums give", "[merge]") {
  for (const int query_heads : {2, 6}) {  // a head of its own, and the mean query of three
    const auto run = run_with(query_heads, 3);
    const LayerTrace& layer = run->layers[0];
    const auto backend = make_cpu_backend();
    LayerWork work(layer, *backend);
    const int heads = query_heads / 2;
    for (const bool votes : {true, false}) {
      PairMerge pair = merged(layer, heads, heads, 5, 9, 20, votes);
      pair.last = 27;  // delay 8 would be position 28
      const std::vector<PairMerge> pairs = {pair};
      const auto samples = bound_samples(work, pairs);
      REQUIRE(samples.size() == bound_delays().size());
      for (size_t d = 0; d < samples.size(); ++d) {
        CHECK(samples[d].size() == (d < 2 ? 1 : 0));
        if (samples[d].empty()) continue;
        const int64_t t = 20 + bound_delays()[d];
        double slot_logit = pair.log_weight;
        for (int h = heads; h < 2 * heads; ++h)
          for (int64_t x = 0; x < layer.k.dim(2); ++x)
            slot_logit += layer.scale * static_cast<double>(element(layer.q, h, t, x)) *
                          static_cast<double>(pair.key[static_cast<size_t>(x)]) / heads;
        const BoundSample expected = naive(layer, pair, t, slot_logit);
        CHECK(samples[d][0].perturbation == Approx(expected.perturbation).margin(1e-6));
        CHECK(samples[d][0].spread == Approx(expected.spread).margin(1e-6));
        CHECK(samples[d][0].mismatch == Approx(expected.mismatch).margin(1e-6));
      }
      // Exact scores at the merge query: nothing changes there.
      CHECK(samples[0][0].perturbation == Approx(0).margin(1e-6));
    }
  }
}

TEST_CASE("the scale and bias bounds hold for every pair and query", "[merge]") {
  int applicable = 0;
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    const auto run = run_with(2, seed);
    const auto backend = make_cpu_backend();
    LayerWork work(run->layers[0], *backend);
    for (const bool votes : {true, false}) {
      std::vector<PairMerge> pairs;
      for (uint32_t i = 0; i + 1 < 20; ++i)
        pairs.push_back(merged(run->layers[0], 1, 1, i, i + 1, 20, votes));
      for (const auto& samples : bound_samples(work, pairs)) {
        for (const BoundSample& sample : samples) {
          if (!(sample.mismatch < 1)) continue;
          ++applicable;
          const double slack = 1e-5 * sample.spread;
          CHECK(sample.perturbation <= bound(votes ? "scale" : "bias").value(sample) + slack);
        }
      }
    }
  }
  CHECK(applicable > 500);
}
