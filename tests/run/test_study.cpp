#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>

#include "analysis/statistics.hpp"
#include "tests/reference/reference.hpp"
#include "tests/support/study_case.hpp"

using namespace kvsim;
using namespace kvsim::test;

namespace {

constexpr int64_t kPromptLength = 48;
constexpr int64_t kObserved = 8;

/// What a study says of `snapkv,window=8` at budget 0.5, every step evaluated.
struct StudyOfSynth : StudyCase {
  explicit StudyOfSynth(const std::function<void(StudyOptions&)>& change)
      : StudyCase({.prompt = kPromptLength,
                   .steps = 6,
                   .num_layers = 1,
                   .head_dim = 16,
                   .value_dim = 16,
                   .hidden = 24,
                   .type = ElementType::float32,
                   .spans = {{"a", 4, 20}, {"b", 20, 30}}},
                  {"snapkv,window=8"}, [&](StudyOptions& options) {
                    options.wo_steps = 0;
                    change(options);
                  }) {}

  /// All pairs (importance, importance if kept) that `counts` says belong to the scope.
  void check_scope(const std::function<bool(int64_t entry)>& counts) const {
    for (int64_t step = 0; step < 6; ++step) {
      std::vector<double> x, y;
      double x_sum = 0, y_sum = 0, xx = 0, yy = 0;
      for (int head = 0; head < info().num_query_heads; ++head) {
        const std::vector<double> gain = importance(head, step);
        for (int64_t entry = 0; entry <= kPromptLength + step; ++entry) {
          if (!counts(entry)) continue;
          x.push_back(gain[static_cast<size_t>(entry)]);
          y.push_back(entry >= kPromptLength || kept(0, 0, head, entry) ? x.back() : 0.0);
          x_sum += x.back();
          y_sum += y.back();
          xx += x.back() * x.back();
          yy += y.back() * y.back();
        }
      }
      CHECK(value("retained_importance", {0, 0, 0, step}) == Approx(y_sum / x_sum).margin(1e-5));
      CHECK(value("importance_cosine", {0, 0, 0, step}) == Approx(std::sqrt(yy / xx)).margin(1e-5));
      CHECK(value("importance_pearson", {0, 0, 0, step}) == Approx(pearson(x, y)).margin(1e-5));
    }
  }
};

const std::set<std::string> kCorrelation = {"importance_pearson", "importance_cosine"};

}  // namespace

TEST_CASE("what is read at each step is held as a whole, with the bounds of its pages", "[study]") {
  const StudyOfSynth study(
      [](StudyOptions& options) { options.records = {Record::parse("quest,skip_layers=none")}; });
  const auto said = [&](const char* name) { return study.value(name, {0, 0}); };
  const TraceInfo& info = study.info();
  const int heads = info.num_kv_heads;
  const double slots = static_cast<double>(heads) * kPromptLength;
  CHECK(said("realised_ratio") == 1);
  CHECK(said("bytes_side") == slots * 2 * 16 * 2 / 16);  // least and largest key of 16 slots
  CHECK(said("bytes_flattened") == slots * (2 * 16 * 2 + 4) + 4 * heads);
  for (int head = 0; head < info.num_query_heads; ++head)
    CHECK(study.value("kept_query", {0, 0, 0, head}) == 16);  // a page of 24 places
}

TEST_CASE("shares and correlations are taken over the prompt, its evictable part, or everything",
          "[study]") {
  SECTION("prompt") {
    const StudyOfSynth study([](StudyOptions& o) { o.metrics = kCorrelation; });
    study.check_scope([](int64_t entry) { return entry < kPromptLength; });
  }
  SECTION("evictable") {
    const StudyOfSynth study([](StudyOptions& o) {
      o.metrics = kCorrelation;
      o.scope = Scope::evictable;
    });
    study.check_scope([](int64_t entry) { return entry < kPromptLength - kObserved; });
  }
  SECTION("all") {
    const StudyOfSynth study([](StudyOptions& o) {
      o.metrics = kCorrelation;
      o.scope = Scope::all;
    });
    study.check_scope([](int64_t) { return true; });
  }
}

TEST_CASE("regret is what the oracles keep more, whether they are shown or not", "[study]") {
  const auto ask = [](StudyOptions& o) { o.metrics = {"regret_mean", "regret_step"}; };
  const StudyOfSynth hidden(ask);
  const StudyOfSynth shown([&](StudyOptions& o) {
    ask(o);
    o.records.push_back(Record::parse("oracle-mean"));
    o.records.push_back(Record::parse("oracle-step"));
  });
  CHECK(hidden.results().size("policy") == 1);
  const auto mean_of = [&](int64_t policy) {
    return shown.value("retained_importance_mean", {policy, 0, 0});
  };
  CHECK(hidden.value("regret_mean", {0, 0, 0}) == Approx(mean_of(1) - mean_of(0)));
  CHECK(shown.value("regret_mean", {1, 0, 0}) == 0);
  const auto own = shown.results().row("retained_importance", {0, 0, 0});
  const auto best = shown.results().row("retained_importance", {2, 0, 0});
  const auto regret = hidden.results().row("regret_step", {0, 0, 0});
  for (size_t t = 0; t < regret.size(); ++t) CHECK(regret[t] == Approx(best[t] - own[t]));
}

TEST_CASE("regret is measured against the oracle of the importance that is measured", "[study]") {
  for (const Norm norm : {Norm::l1, Norm::l2}) {
    const StudyOfSynth study([&](StudyOptions& o) {
      o.records = {Record::parse("oracle-mean"), Record::parse("random")};
      o.metrics = {"regret_mean"};
      o.importance = norm;
    });
    const TraceInfo& info = study.info();
    const int group = info.group_size();
    std::vector<std::vector<double>> gain(static_cast<size_t>(info.num_kv_heads),
                                          std::vector<double>(kPromptLength, 0.0));
    for (int64_t step = 0; step < 6; ++step) {
      std::vector<std::vector<double>> rows;
      double total = 0;
      for (int head = 0; head < info.num_query_heads; ++head) {
        auto& row = rows.emplace_back(study.attention(head, step));
        row.resize(kPromptLength);
        for (size_t i = 0; i < row.size(); ++i) {
          const auto out = reference::project(
              study.layer(), head, reference::value(study.layer(), head, static_cast<int64_t>(i)));
          row[i] *= norm == Norm::l1 ? reference::l1(out) : reference::l2(out);
          total += row[i];
        }
      }
      for (int head = 0; head < info.num_query_heads; ++head)
        for (size_t i = 0; i < kPromptLength; ++i)
          gain[static_cast<size_t>(head / group)][i] += rows[static_cast<size_t>(head)][i] / total;
    }
    double best = 0;  // mean over steps of what the best static sets keep
    for (auto& owner : gain) {
      std::sort(owner.rbegin(), owner.rend());
      for (size_t x = 0; x < kPromptLength / 2; ++x) best += owner[x] / 6;
    }
    const auto mean_of = [&](int64_t policy) {
      return study.value("retained_importance_mean", {policy, 0, 0});
    };
    CHECK(mean_of(0) == Approx(best).epsilon(1e-5));
    CHECK(study.value("regret_mean", {1, 0, 0}) == Approx(best - mean_of(1)).margin(1e-5));
  }
}

TEST_CASE("entries kept for their deviation are evictable, unlike sinks and recent ones",
          "[study]") {
  const StudyOfSynth study([](StudyOptions& o) {
    o.records = {Record::parse("roco")};  // sinks 4, recent 10, deviation 0.3
    o.metrics = kCorrelation;
    o.scope = Scope::evictable;
  });
  study.check_scope([](int64_t entry) { return entry >= 4 && entry < kPromptLength - 10; });
}

TEST_CASE("the residual error divides the absolute one by the residual norm", "[study]") {
  const StudyOfSynth study([](StudyOptions& o) { o.metrics = {"output_error_absolute"}; });
  const auto absolute = study.results().row("output_error_absolute", {0, 0, 0});
  const auto residual = study.results().row("residual_error", {0, 0, 0});
  const auto first = static_cast<size_t>(study.info().first_step());
  for (size_t t = 0; t < absolute.size(); ++t) {
    CHECK(residual[t] == Approx(absolute[t] / study.layer().residual_norm[first + t]));
  }
}

TEST_CASE("steps that are not projected are undefined and left out of summaries", "[study]") {
  const StudyOfSynth study([](StudyOptions& o) { o.wo_steps = 2; });  // of 6: steps 0 and 3
  const auto error = study.results().row("output_error", {0, 0, 0});
  for (size_t t = 0; t < error.size(); ++t) CHECK(std::isnan(error[t]) == (t != 0 && t != 3));
  CHECK(study.value("output_error_mean", {0, 0, 0}) == Approx((error[0] + error[3]) / 2));
  CHECK(study.value("output_error_max", {0, 0, 0}) == std::max(error[0], error[3]));
}

TEST_CASE("keep rates and the mask tell the same story", "[study]") {
  const StudyOfSynth study([](StudyOptions& o) { o.span_complements = {"a"}; });
  double kept = 0;
  double outside = 0;
  for (int kv = 0; kv < 2; ++kv) {
    for (int64_t i = 0; i < kPromptLength; ++i) {
      if (i >= 4 && i < 20) kept += study.kept(0, 0, kv * study.info().group_size(), i);
      if (i < 4 || i >= 20) outside += study.kept(0, 0, kv * study.info().group_size(), i);
    }
  }
  const auto rates = study.results().row("keep_rate", {0, 0, 0});
  CHECK(rates[0] == Approx(kept / 32));
  CHECK(rates[2] == Approx(outside / 64));
  CHECK(study.value("bias_index", {0, 0, 0, 0}) == Approx(kept / 32 - 0.5));
  CHECK(study.value("bias_spread", {0, 0, 0}) == Approx(std::abs(rates[0] - rates[1])));
}

TEST_CASE("results say where the spans are, a complement from its first token to its last",
          "[study]") {
  const StudyOfSynth study([](StudyOptions& o) { o.span_complements = {"a"}; });
  const auto positions = [&](const char* name) {
    return std::get<std::vector<int64_t>>(study.results().at(name).values);
  };
  CHECK(positions("span_begin") == std::vector<int64_t>{4, 20, 0});
  CHECK(positions("span_end") == std::vector<int64_t>{20, 30, kPromptLength});
}

TEST_CASE("equal records and budgets collapse, in the order they were typed", "[study]") {
  const StudyOfSynth study([](StudyOptions& o) {
    o.records.push_back(Record::parse("snapkv,window=08"));
    o.records.push_back(Record::parse("streaming"));
    o.budgets = {Budget::parse("50%"), Budget::parse("0.5"), Budget::parse("12")};
  });
  CHECK(study.results().size("policy") == 2);
  CHECK(std::get<std::vector<double>>(study.results().at("budget").values) ==
        std::vector<double>{0.5, 0.25});
  CHECK(std::get<std::vector<std::string>>(study.results().at("budget_label").values) ==
        std::vector<std::string>{"0.5", "12"});
}

TEST_CASE("the default number of projected steps follows the shapes of the trace", "[study]") {
  TraceInfo info;
  info.num_query_heads = 32;
  info.head_dim = 128;
  info.hidden_size = 4096;
  info.prompt_len = 4096;
  info.total_len = 4096 + 512;
  for (int64_t p = 4096; p < 4608; ++p) info.query_position.push_back(p);
  const int64_t few = default_wo_steps(info, 128);
  CHECK(few >= 16);
  CHECK(few < 64);
  info.prompt_len = 131072;
  info.total_len = info.prompt_len + 512;
  for (int64_t& p : info.query_position) p += 131072 - 4096;
  CHECK(default_wo_steps(info, 128) > 256);
  info.hidden_size = 576;  // a small model affords all of them
  info.num_query_heads = 9;
  info.head_dim = 64;
  CHECK(default_wo_steps(info, 64) == 512);
}
