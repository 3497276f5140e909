// What a study says of stepwise and repeated compression, and of quantised entries, against naive
// float64 forms. StreamingLLM's sets are known beforehand: sinks and the newest.
#include <catch2/catch.hpp>
#include <cmath>

#include "analysis/statistics.hpp"
#include "tests/reference/reference.hpp"
#include "tests/support/study_case.hpp"

using namespace kvsim;
using namespace kvsim::test;

namespace {

constexpr int64_t kScheduledPrompt = 40, kBudget = 20, kSinks = 4, kPeriod = 3;

RandomTraceShape shape_of(int heads, int kv_heads, bool sink) {
  return {.query_heads = heads,
          .kv_heads = kv_heads,
          .d = 8,
          .dv = 6,
          .prompt = kScheduledPrompt,
          .sink = sink};
}

/// When the prompt of a later step ends, and what StreamingLLM keeps of it.
struct NaiveSchedule {
  std::string changes;
  std::function<int64_t(int64_t step)> compressed_at;
  bool holds(int64_t step, int64_t entry) const {
    return entry < kSinks || entry >= compressed_at(step) - (kBudget - kSinks);
  }
};
const NaiveSchedule kPrefill{"", [](int64_t) { return kScheduledPrompt; }};
const NaiveSchedule kPeriodic{",schedule=periodic,period=3", [](int64_t step) {
                                return kScheduledPrompt + step / kPeriod * kPeriod;
                              }};
const NaiveSchedule kDecode{",schedule=decode",
                            [](int64_t step) { return kScheduledPrompt + step; }};

void check_correlation(const StudyCase& study, int64_t record, const NaiveSchedule& schedule,
                       Scope scope) {
  for (int64_t step = 0; step < study.info().steps(); ++step) {
    CAPTURE(record, step);
    const int64_t end = scope == Scope::all ? kScheduledPrompt + step + 1
                                            : schedule.compressed_at(step);
    std::vector<double> x, y;
    double xx = 0, yy = 0;
    for (int head = 0; head < study.info().num_query_heads; ++head) {
      const std::vector<double> gain = study.importance(head, step);
      for (int64_t i = scope == Scope::evictable ? kSinks : 0; i < end; ++i) {
        x.push_back(gain[static_cast<size_t>(i)]);
        y.push_back(schedule.holds(step, i) ? x.back() : 0);
        xx += x.back() * x.back();
        yy += y.back() * y.back();
      }
    }
    CHECK(study.value("importance_pearson", {record, 0, 0, step}) ==
          Approx(pearson(x, y)).margin(1e-5));
    CHECK(study.value("importance_cosine", {record, 0, 0, step}) ==
          Approx(std::sqrt(yy / xx)).margin(1e-5));
  }
}

using FloatRows = std::vector<std::vector<float>>;  // [slots][channels]

/// Rounds numbers of one group to the 2^bits levels between their lowest and highest.
void round_group(const std::vector<float*>& group, int bits) {
  float low = *group[0], high = *group[0];
  for (const float* x : group) low = std::min(low, *x), high = std::max(high, *x);
  const float step = (high - low) / static_cast<float>((1 << bits) - 1);
  for (float* x : group) *x = high == low ? low : low + std::nearbyint((*x - low) / step) * step;
}

/// Groups of `size` over the channels of each row, or over the first `count` rows of each channel.
void round_rows(FloatRows& rows, size_t count, size_t size, bool over_channels, int bits) {
  const size_t outer = over_channels ? count : rows[0].size();
  const size_t inner = over_channels ? rows[0].size() : count;
  for (size_t a = 0; a < outer; ++a) {
    for (size_t b = 0; b < inner; b += size) {
      std::vector<float*> group;
      for (size_t c = b; c < std::min(b + size, inner); ++c)
        group.push_back(over_channels ? &rows[a][c] : &rows[c][a]);
      round_group(group, bits);
    }
  }
}

struct Slots {
  FloatRows k, v;
};

double cosine(const std::vector<float>& a, const std::vector<float>& b) {
  double ab = 0, aa = 0, bb = 0;
  for (size_t c = 0; c < a.size(); ++c) {
    ab += static_cast<double>(a[c]) * static_cast<double>(b[c]);
    aa += static_cast<double>(a[c]) * static_cast<double>(a[c]);
    bb += static_cast<double>(b[c]) * static_cast<double>(b[c]);
  }
  return ab / std::sqrt(aa * bb);
}

Slots entries_of(const LayerTrace& layer, int kv, int64_t begin, int64_t end) {
  Slots all;
  for (int64_t i = begin; i < end; ++i) {
    all.k.emplace_back();
    all.v.emplace_back();
    for (int64_t c = 0; c < layer.k.dim(2); ++c) all.k.back().push_back(element(layer.k, kv, i, c));
    for (int64_t c = 0; c < layer.v.dim(2); ++c) all.v.back().push_back(element(layer.v, kv, i, c));
  }
  return all;
}

/// The prompt of `compressed_at` entries after StreamingLLM; every evicted entry joins the kept
/// slot with the nearest key, as a plain mean, when `convex`.
Slots compressed(const LayerTrace& layer, int kv, const NaiveSchedule& schedule, int64_t step,
                 bool convex) {
  const int64_t n = schedule.compressed_at(step);
  const Slots all = entries_of(layer, kv, 0, n);
  std::vector<size_t> kept, members;
  Slots slots;
  for (int64_t i = 0; i < n; ++i) {
    if (!schedule.holds(step, i)) continue;
    kept.push_back(static_cast<size_t>(i));
    slots.k.push_back(all.k[static_cast<size_t>(i)]);
    slots.v.push_back(all.v[static_cast<size_t>(i)]);
    members.push_back(1);
  }
  for (int64_t i = 0; convex && i < n; ++i) {
    if (schedule.holds(step, i)) continue;
    const auto e = static_cast<size_t>(i);
    size_t target = 0;
    for (size_t s = 0; s < kept.size(); ++s)
      if (cosine(all.k[e], all.k[kept[s]]) >= cosine(all.k[e], all.k[kept[target]])) target = s;
    const auto join = [&](std::vector<float>& mean, const std::vector<float>& x) {
      const auto p = static_cast<float>(members[target]);
      for (size_t c = 0; c < mean.size(); ++c) mean[c] = (p * mean[c] + x[c]) / (p + 1);
    };
    join(slots.k[target], all.k[e]);
    join(slots.v[target], all.v[e]);
    ++members[target];
  }
  return slots;
}

/// z of one query head over slots and the later entries n..t, [dv].
std::vector<double> output_over(const StudyCase& study, int head, int64_t step, int64_t n,
                                Slots slots) {
  const LayerTrace& layer = study.layer();
  const Slots later = entries_of(layer, head / study.info().group_size(), n,
                                 kScheduledPrompt + step + 1);
  slots.k.insert(slots.k.end(), later.k.begin(), later.k.end());
  slots.v.insert(slots.v.end(), later.v.begin(), later.v.end());
  double sum = layer.attention_sink.empty()
                   ? 0
                   : std::exp(static_cast<double>(layer.attention_sink[static_cast<size_t>(head)]));
  std::vector<double> z(slots.v[0].size(), 0.0);
  const int64_t row = study.info().first_step() + step;
  for (size_t s = 0; s < slots.k.size(); ++s) {
    double logit = 0;
    for (size_t c = 0; c < slots.k[s].size(); ++c)
      logit += static_cast<double>(element(layer.q, head, row, static_cast<int64_t>(c))) *
               static_cast<double>(slots.k[s][c]);
    const double weight = std::exp(layer.scale * logit);
    sum += weight;
    for (size_t c = 0; c < z.size(); ++c) z[c] += weight * static_cast<double>(slots.v[s][c]);
  }
  for (double& x : z) x /= sum;
  return z;
}

/// Relative norms after W_O, summed over heads: of what rounding adds, and of the whole error.
struct Errors {
  double rounding = 0, all = 0;
};

Errors naive_errors(const StudyCase& study, int64_t step, const NaiveSchedule& schedule,
                    bool convex, const std::function<void(Slots&)>& quantize) {
  std::vector<double> added, whole, full;
  const auto add = [&](std::vector<double>& sum, int head, const std::vector<double>& x) {
    const auto y = reference::project(study.layer(), head, x);
    sum.resize(y.size(), 0.0);
    for (size_t c = 0; c < y.size(); ++c) sum[c] += y[c];
  };
  const int64_t n = schedule.compressed_at(step);
  for (int head = 0; head < study.info().num_query_heads; ++head) {
    const int kv = head / study.info().group_size();
    const Slots exact = compressed(study.layer(), kv, schedule, step, convex);
    Slots rounded = exact;
    quantize(rounded);
    const auto z = reference::output(study.layer(), head, study.attention(head, step));
    const auto z_exact = output_over(study, head, step, n, exact);
    auto z_rounded = output_over(study, head, step, n, rounded);
    std::vector<double> change = z_rounded;
    for (size_t c = 0; c < z.size(); ++c) change[c] -= z[c], z_rounded[c] -= z_exact[c];
    add(added, head, z_rounded);
    add(whole, head, change);
    add(full, head, z);
  }
  return {reference::l2(added) / reference::l2(full), reference::l2(whole) / reference::l2(full)};
}

}  // namespace

TEST_CASE("correlations of importance follow what is present under every schedule", "[study]") {
  for (const auto& [heads, kv_heads] : {std::pair{4, 2}, {3, 3}, {8, 1}}) {
    for (const Scope scope : {Scope::prompt, Scope::evictable, Scope::all}) {
      CAPTURE(heads, kv_heads, static_cast<int>(scope));
      const StudyCase study(
          shape_of(heads, kv_heads, heads == 4), {},
          {"streaming", "streaming" + kPeriodic.changes, "streaming" + kDecode.changes},
          [&](StudyOptions& o) {
        o.metrics = {"importance_pearson", "importance_cosine"};
        o.scope = scope;
          });
      check_correlation(study, 0, kPrefill, scope);
      check_correlation(study, 1, kPeriodic, scope);
      check_correlation(study, 2, kDecode, scope);
    }
  }
}

TEST_CASE("what quantisation adds to the output error, dropped or merged, once or repeatedly",
          "[study][quantize]") {
  constexpr size_t kGroup = 4, kResidual = 8;
  const auto per_token = [](Slots& slots) {
    round_rows(slots.k, slots.k.size() - kResidual, kGroup, true, 2);
    round_rows(slots.v, slots.v.size() - kResidual, kGroup, true, 2);
  };
  const auto kivi = [](Slots& slots) {
    round_rows(slots.k, slots.k.size() / kResidual * kResidual, kGroup, false, 2);
    round_rows(slots.v, slots.v.size() - kResidual, kGroup, true, 2);
  };
  const std::string merge = ",merge=convex,merge_threshold=-1";
  const std::string bits = ",quant_bits=2,quant_group=4,quant_residual=8";
  for (const auto& [heads, kv_heads] : {std::pair{4, 2}, {3, 3}}) {
    for (const NaiveSchedule& schedule : {kPrefill, kPeriodic}) {
      const std::string base = "streaming" + schedule.changes;
      const StudyCase study(
          shape_of(heads, kv_heads, heads == 3), {},
          {base, base + ",quantize=per-token" + bits, base + ",quantize=kivi" + bits,
           base + merge + ",quantize=kivi" + bits},
          [](StudyOptions& o) { o.wo_steps = 0; });
      for (int64_t step = 0; step < study.info().steps(); ++step) {
        CHECK(std::isnan(study.value("quantization_error", {0, 0, 0, step})));
        for (int64_t record = 1; record < 4; ++record) {
          CAPTURE(heads, schedule.changes, record, step);
          const Errors expected = naive_errors(
              study, step, schedule, record == 3,
              record == 1 ? std::function<void(Slots&)>(per_token) : kivi);
          CHECK(study.value("quantization_error", {record, 0, 0, step}) ==
                Approx(expected.rounding).epsilon(1e-4));
          CHECK(study.value("output_error", {record, 0, 0, step}) ==
                Approx(expected.all).epsilon(1e-4));
        }
      }
      CHECK(study.value("quantization_error_mean", {2, 0, 0}) > 0);
    }
  }
}
