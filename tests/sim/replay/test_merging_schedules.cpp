// Merging under every schedule, over odd shapes, against the naive float64 form.
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdlib>

#include "analysis/formulas.hpp"
#include "sim/core/numbers.hpp"
#include "sim/replay/layer_replay.hpp"
#include "tests/reference/merging.hpp"
#include "tests/reference/reference.hpp"
#include "tests/support/random_records.hpp"
#include "tests/support/random_run.hpp"

using namespace kvsim;
using namespace kvsim::test;

namespace {

// Logits are float32 products: about 1e-6 each, and estimates sum exponentials of them.
constexpr double kScheduleTolerance = 1e-4;
constexpr size_t kRecordsOfShape = 15;  // five ways to merge, three schedules

/// Neighbours have similar keys, so that merges happen.
std::unique_ptr<RandomRun> similar_run(const RandomTraceShape& shape) {
  auto run = random_run(shape, {0}, 1);
  Tensor& k = run->layers[0].k;
  for (int64_t kv = 0; kv < shape.kv_heads; ++kv)
    for (int64_t i = 1; i < shape.prompt + shape.later; ++i)
      for (int64_t c = 0; c < shape.d; ++c)
        set_element(k, kv, i, c, 0.8f * element(k, kv, i - 1, c) + 0.6f * element(k, kv, i, c));
  return run;
}

/// Small odd shapes.
std::unique_ptr<RandomRun> odd_run(uint64_t seed) {
  const auto draw = [&](uint64_t what, int64_t choices) {
    return static_cast<int64_t>(uniform(seed, what, 7, 0) * static_cast<double>(choices));
  };
  RandomTraceShape shape{.kv_heads = 1 + static_cast<int>(draw(1, 3)), .seed = seed};
  shape.query_heads = shape.kv_heads * (1 + static_cast<int>(draw(2, 3)));
  shape.d = 6 + draw(3, 13);
  shape.dv = 5 + draw(4, 15);
  shape.prompt = 19 + draw(5, 24);
  shape.later = 11 + draw(6, 9);
  shape.sink = draw(7, 2) == 1;
  return similar_run(shape);
}

/// What a record says of every step.
struct Seen {
  std::vector<double> change;  ///< [Hq][T][dv]
  std::vector<double> sag, defect, value_part, mass_part;
  std::vector<PairMerge> pairs;
};

Seen replayed(const RandomRun& run, const std::string& text, const std::string& budget) {
  const std::vector<LayerKept> kept = kept_of(run, {text}, {budget});
  const std::vector<Record> records = {Record::parse(text)};
  const auto backend = make_cpu_backend();
  const MadeUpFiles files;
  PolicyRun policies(records, {Budget::parse(budget)}, run.info, {0}, 0, files);
  PeriodicPolicies periodic(policies, run.info, {0}, 0, files);
  LayerWork work(run.layers[0], *backend);
  PrefillOptions options;
  options.slot_changes = options.pairs = true;
  LayerReplay replay(work, periodic, kept[0], records, options);
  Seen seen;
  const auto steps = static_cast<size_t>(run.info.steps());
  const auto width = static_cast<size_t>(work.value_dim());
  seen.change.assign(static_cast<size_t>(work.query_heads()) * steps * width, 0.0);
  seen.sag = seen.defect = seen.value_part = seen.mass_part = std::vector<double>(steps, NAN);
  replay.run([&](const StepBlock& block) {
    for (const OutcomeBlock& view : block.outcomes) {
      for (int64_t s = 0; s < block.steps; ++s) {
        const auto at = static_cast<size_t>(block.first_step + s);
        for (size_t h = 0; h < static_cast<size_t>(work.query_heads()); ++h)
          for (size_t c = 0; c < width; ++c)
            seen.change[(h * steps + at) * width + c] = static_cast<double>(
                view.delta[(h * static_cast<size_t>(block.steps) + static_cast<size_t>(s)) * width +
                           c]);
        seen.sag[at] = view.merges == nullptr ? 0 : view.merges->mean(&MergeSums::sag, s);
        if (view.merges == nullptr) continue;
        seen.defect[at] = view.merges->slot_mean(&MergeSums::defect, s);
        seen.value_part[at] = view.merges->slot_mean(&MergeSums::value_part, s);
        seen.mass_part[at] = view.merges->slot_mean(&MergeSums::mass_part, s);
      }
    }
  });
  seen.pairs = replay.outcome(0).pairs;
  return seen;
}

/// Largest differences of float32 caches from the float64 form where no key was stretched.
struct Largest {
  double change = 0, sag = 0, defect = 0;
};

/// Eq. 7 of KeepKV divides by a mean logit, which may be small: rounding grows with the square of
/// the factor, and beyond this one nothing is compared.
constexpr double kTooStretched = 30;
double tolerance_after(double stretch) { return kScheduleTolerance * stretch * stretch; }

void same(double found, double expected, double tolerance, double* largest = nullptr) {
  if (std::isnan(expected)) {
    CHECK(std::isnan(found));
    return;
  }
  if (largest != nullptr) *largest = std::max(*largest, std::abs(found - expected));
  CHECK(found == Approx(expected).epsilon(tolerance).margin(tolerance));
}

void compare(const Seen& seen, const TraceInfo& info, size_t step,
             const std::vector<reference::MergedStep>& heads, double stretch, Largest& largest) {
  if (stretch > kTooStretched) return;
  const size_t width = heads[0].change.size();
  const double tolerance = tolerance_after(stretch);
  const bool plain = stretch == 1;
  Largest ignored;
  Largest& seen_most = plain ? largest : ignored;
  double sag = 0, defect = 0, value_part = 0, mass_part = 0, slots = 0;
  for (size_t h = 0; h < heads.size(); ++h) {
    for (size_t c = 0; c < width; ++c)
      same(seen.change[(h * static_cast<size_t>(info.steps()) + step) * width + c],
           heads[h].change[c], tolerance, &seen_most.change);
    sag += heads[h].sag / static_cast<double>(heads.size());
    defect += heads[h].defect;
    value_part += heads[h].value_part;
    mass_part += heads[h].mass_part;
    slots += heads[h].slots;
  }
  same(seen.sag[step], sag, tolerance, &seen_most.sag);
  same(seen.defect[step], slots > 0 ? defect / slots : NAN, tolerance, &seen_most.defect);
  same(seen.value_part[step], slots > 0 ? value_part / slots : NAN, tolerance);
  same(seen.mass_part[step], slots > 0 ? mass_part / slots : NAN, tolerance);
}

void same_pairs(const std::vector<PairMerge>& found,
                const std::vector<reference::MadePair>& expected, int heads, double stretch) {
  if (stretch > kTooStretched) return;
  const double tolerance = tolerance_after(stretch);
  REQUIRE(found.size() == expected.size());
  for (const reference::MadePair& one : expected) {
    const auto pair = std::ranges::find_if(found, [&](const PairMerge& other) {
      return other.first_head == one.owner * heads && other.from == one.from &&
             other.into == one.into && other.merged_at == one.merged_at;
    });
    REQUIRE(pair != found.end());
    same(pair->log_score_from, one.log_score_from, tolerance);
    same(pair->log_score_into, one.log_score_into, tolerance);
    same(pair->log_weight, one.log_weight, tolerance);
    for (size_t c = 0; c < one.value.size(); ++c)
      same(static_cast<double>(pair->value[c]), one.value[c], tolerance);
  }
}

/// One way to merge, under every schedule.
void compare_schedules(const RandomRun& run, const std::string& merge, int64_t budget,
                       Largest& largest) {
  const TraceInfo& info = run.info;
  reference::StreamingMerge::Rule rule;
  rule.merge = merge;
  rule.threshold = 0.6;
  rule.sinks = 2;
  rule.budget = budget;
  rule.window = 5;
  rule.cam_targets = 3;
  std::string record = "streaming,sinks=2,merge=" + merge;
  if (merge == "convex") record += ",merge_threshold=0.6";
  if (merge.starts_with("keepkv")) record += ",merge_threshold=0.6,estimate_window=5";
  if (merge == "cam-expected") record += ",cam_targets=3";
  INFO(record << ": " << info.num_query_heads << " heads, " << info.num_kv_heads << " KV heads, n "
              << info.prompt_len);
  const int64_t n = info.prompt_len;
  const std::string slots = std::to_string(budget);
  /// `step` of the naive form sees position t.
  const auto check = [&](const std::string& schedule, const auto& step) {
    reference::StreamingMerge naive(run.layers[0], rule);
    const Seen seen = replayed(run, record + schedule, slots);
    for (int64_t t = n; t < info.total_len; ++t) {
      const auto heads = step(naive, t);
      compare(seen, info, static_cast<size_t>(t - n), heads, naive.stretch(), largest);
    }
    same_pairs(seen.pairs, naive.pairs(), info.group_size(), naive.stretch());
  };
  check("", [&](auto& naive, int64_t t) {
    if (t == n) naive.compress(n);
    return naive.look(n, t);
  });
  check(",schedule=periodic,period=4", [&](auto& naive, int64_t t) {
    const int64_t prompt = n + (t - n) / 4 * 4;
    if (prompt == t) naive.compress(t);
    return naive.look(prompt, t);
  });
  check(",schedule=decode", [&](auto& naive, int64_t t) {
    if (t == n) naive.compress(n);
    return naive.decode(t);
  });
}

/// policies.md 11 says so to users.
void check_float32_is_enough(const Largest& largest, uint64_t shapes) {
  CHECK(largest.change < 1e-5);
  CHECK(largest.sag < 1e-5);
  CHECK(largest.defect < 1e-5);
  if (std::getenv("KVSIM_RECORDS") != nullptr)
    WARN(kRecordsOfShape * shapes << " records; largest differences: of outputs " << largest.change
                                  << ", of sags " << largest.sag << ", of log-mass defects "
                                  << largest.defect);
}

constexpr const char* kMerges[] = {"convex", "keepkv", "keepkv-bias", "cam-expected", "drop"};

}  // namespace

TEST_CASE("merging under every schedule is what the naive form says, over odd shapes",
          "[merge][decode][periodic]") {
  Largest largest;
  const uint64_t shapes = asked_records(8 * kRecordsOfShape) / kRecordsOfShape;
  for (uint64_t seed = 1; seed <= shapes; ++seed) {
    CAPTURE(seed);
    const auto run = odd_run(seed);
    for (const char* merge : kMerges) compare_schedules(*run, merge, 9, largest);
  }
  check_float32_is_enough(largest, shapes);
}

TEST_CASE("a long prompt merged into few slots is what the naive form says",
          "[merge][decode][periodic]") {
  RandomTraceShape shape;
  shape.query_heads = 2;
  shape.kv_heads = 1;
  shape.prompt = 400;
  const auto run = similar_run(shape);
  Largest largest;
  for (const char* merge : kMerges) compare_schedules(*run, merge, 24, largest);
  check_float32_is_enough(largest, 1);
}

TEST_CASE("parts of the error hold where merged entries have nearly all attention",
          "[merge][decode]") {
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    const auto run = odd_run(seed);
    run->layers[0].scale *= 6;
    reference::StreamingMerge::Rule rule;
    rule.merge = "convex";
    rule.threshold = 0.6;
    rule.sinks = 2;
    rule.budget = 9;
    rule.window = 5;
    const std::string record = "streaming,sinks=2,merge=convex,merge_threshold=0.6";
    const int64_t n = run->info.prompt_len;
    for (const bool decode : {false, true}) {
      INFO("shape " << seed << (decode ? ", decode" : ""));
      reference::StreamingMerge naive(run->layers[0], rule);
      naive.compress(n);
      const Seen seen = replayed(*run, decode ? record + ",schedule=decode" : record, "9");
      for (int64_t t = n; t < run->info.total_len; ++t) {
        double value_part = 0, mass_part = 0, slots = 0;
        for (const auto& head : decode ? naive.decode(t) : naive.look(n, t)) {
          value_part += head.value_part;
          mass_part += head.mass_part;
          slots += head.slots;
        }
        if (slots == 0) continue;
        // Logits up to about 50 in float32: weights to 1e-4.
        const auto step = static_cast<size_t>(t - n);
        CHECK(seen.value_part[step] == Approx(value_part / slots).epsilon(3e-4).margin(1e-5));
        CHECK(seen.mass_part[step] == Approx(mass_part / slots).epsilon(3e-4).margin(1e-5));
      }
    }
  }
}
