// Class scores (metrics.md 6): retained importance within a span, for every schedule.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <functional>

#include "analysis/statistics.hpp"
#include "tests/support/study_case.hpp"

using namespace kvsim;
using namespace kvsim::test;

namespace {

const std::vector<Span> kLabels = {{"a", 2, 15}, {"b", 20, 31}};
using Present = std::function<bool(int64_t step, int head, int64_t entry)>;

RandomTraceShape shape_of(int heads, int kv_heads) {
  return {.query_heads = heads,
          .kv_heads = kv_heads,
          .dv = 12,
          .softcap = kv_heads == 2 ? 4.0 : 0.0,
          .sink = kv_heads == 1};
}

/// Every span and step of one record against the sums of the definition.
void check(
    const StudyCase& study, int64_t record, const Present& present,
    const Present& counts = [](int64_t, int, int64_t) { return true; }) {
  const TraceInfo& info = study.info();
  for (size_t s = 0; s < kLabels.size(); ++s) {
    double sum = 0;
    for (int64_t step = 0; step < info.steps(); ++step) {
      double kept = 0, all = 0;
      for (int head = 0; head < info.num_query_heads; ++head) {
        const std::vector<double> gain = study.importance(head, step);
        for (int64_t i = kLabels[s].begin; i < kLabels[s].end; ++i) {
          if (!counts(step, head, i)) continue;
          all += gain[static_cast<size_t>(i)];
          if (present(step, head, i)) kept += gain[static_cast<size_t>(i)];
        }
      }
      const double share = all == 0 ? 1 : kept / all;
      const auto span = static_cast<int64_t>(s);
      CHECK(study.value("span_retained_importance_step", {record, 0, 0, span, step}) ==
            Approx(share).margin(2e-6));
      sum += share;
    }
    CHECK(study.value("span_retained_importance", {record, 0, 0, static_cast<int64_t>(s)}) ==
          Approx(sum / static_cast<double>(info.steps())).margin(2e-6));
  }
}

void ask(StudyOptions& options) { options.metrics = {"span_retained_importance_step"}; }

}  // namespace

TEST_CASE("class scores are the importance kept of a span's own entries", "[classes]") {
  for (const auto& [heads, kv_heads] : {std::pair{4, 2}, {16, 1}, {3, 3}}) {
    const StudyCase study(shape_of(heads, kv_heads), kLabels,
                          {"snapkv,window=4", "snapkv:official,window=4,tie=recent", "streaming",
                           "snapkv,window=4,merge=convex,merge_threshold=-1"},
                          ask);
    for (int64_t record = 0; record < 4; ++record) {
      CAPTURE(heads, record);
      check(study, record,
            [&](int64_t, int head, int64_t entry) { return study.kept(record, 0, head, entry); });
    }
  }
}

TEST_CASE("class scores leave out protected entries with the scope evictable", "[classes]") {
  const StudyCase study(shape_of(4, 2), kLabels, {"snapkv,window=4,sinks=5"}, [](StudyOptions& o) {
    ask(o);
    o.scope = Scope::evictable;
  });
  check(
      study, 0, [&](int64_t, int head, int64_t entry) { return study.kept(0, 0, head, entry); },
      [](int64_t, int, int64_t entry) { return entry >= 5; });
}

TEST_CASE("class scores follow what is present at each step of other schedules", "[classes]") {
  constexpr int64_t kBudget = 20, kSinks = 4, kPrompt = 40, kPeriod = 3;
  const StudyCase study(
      shape_of(4, 2), kLabels,
      {"streaming,schedule=decode", "streaming,schedule=periodic,period=3", "oracle-step"}, ask);
  check(study, 0, [&](int64_t step, int, int64_t entry) {
    return entry < kSinks || entry >= kPrompt + step - (kBudget - kSinks);
  });
  check(study, 1, [&](int64_t step, int, int64_t entry) {
    const int64_t compressed = kPrompt + step / kPeriod * kPeriod;
    return entry < kSinks || entry >= compressed - (kBudget - kSinks);
  });
  check(study, 2, [&](int64_t step, int head, int64_t entry) {
    std::vector<double> together(kPrompt, 0.0);
    for (int h = head / 2 * 2; h < head / 2 * 2 + 2; ++h) {
      const std::vector<double> gain = study.importance(h, step);
      for (size_t i = 0; i < together.size(); ++i) together[i] += gain[i];
    }
    const double own = together[static_cast<size_t>(entry)];
    return std::ranges::count_if(together, [&](double other) { return other > own; }) < kBudget;
  });
}

TEST_CASE("a span without importance keeps all of it, and a run without spans has no class scores",
          "[classes]") {
  const StudyCase none(shape_of(4, 2), {}, {"streaming"}, ask);
  CHECK_FALSE(none.results().has("span_retained_importance"));
  CHECK_FALSE(none.results().has("span_retained_importance_step"));
  const StudyCase full(shape_of(4, 2), kLabels, {"full"});
  CHECK(full.value("span_retained_importance", {0, 0, 0, 1}) == 1);
  CHECK_FALSE(full.results().has("span_retained_importance_step"));
}

TEST_CASE("the order of spans is compared with that at the largest budget below n", "[classes]") {
  const std::vector<Span> spans = {{"a", 0, 9}, {"b", 9, 20}, {"c", 20, 30}, {"d", 30, 36}};
  const StudyCase study(shape_of(4, 2), spans, {"snapkv,window=4", "full"}, [](StudyOptions& o) {
    o.budgets = {Budget::parse("0.2"), Budget::parse("1.0"), Budget::parse("0.8")};
    o.span_complements = {"a"};  // no class of its own
  });
  const auto scores = [&](int64_t budget) {
    const auto row = study.results().row("span_retained_importance", {0, budget, 0});
    return std::vector<double>(row.begin(), row.begin() + 4);
  };
  CHECK(study.value("span_spearman", {0, 0}) == Approx(spearman(scores(0), scores(2))));
  CHECK(std::isnan(study.value("span_spearman", {0, 1})));  // all scores are 1
  CHECK(study.value("span_spearman", {0, 2}) == Approx(1));
  CHECK(std::isnan(study.value("span_spearman", {1, 0})));
}
