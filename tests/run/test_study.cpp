#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>

#include "analysis/statistics.hpp"
#include "run/study/study.hpp"
#include "run/trace/synth.hpp"
#include "tests/io/trace_fixture.hpp"
#include "tests/reference/reference.hpp"

using namespace kvsim;
using namespace kvsim::test;

namespace {

constexpr int64_t kPromptLength = 48;
constexpr int64_t kObserved = 8;

/// A synthetic trace and what a study says of `snapkv,window=8` at budget 0.5.
struct StudyOfSynth {
  explicit StudyOfSynth(const std::function<void(StudyOptions&)>& change) {
    SynthConfig config;
    config.prompt = kPromptLength;
    config.steps = 6;
    config.num_layers = 1;
    config.head_dim = config.value_dim = 16;
    config.hidden = 24;
    config.type = ElementType::float32;
    config.spans = {{"a", 4, 20}, {"b", 20, 30}};
    write_synth(config, folder / "t.h5");
    reader = std::make_unique<TraceReader>(folder / "t.h5");
    layer = reader->read_layer(0);
    StudyOptions options;
    options.records = {Record::parse("snapkv,window=8")};
    options.budgets = {Budget::parse("0.5")};
    options.layers = {0};
    options.wo_steps = 0;
    options.save_keep = true;
    change(options);
    Study study(*reader, options);
    const auto backend = make_cpu_backend();
    results = study.run(*backend);
  }

  bool kept(int kv_head, int64_t entry) const {
    return results.row<uint8_t>("kept_mask", {0, 0, 0, kv_head, entry})[0] == 1;
  }
  /// Full-cache importance of every visible entry, by query head.
  std::vector<std::vector<double>> importance(int64_t step) const {
    const TraceInfo& info = reader->info();
    std::vector<std::vector<double>> rows;
    for (int head = 0; head < info.num_query_heads; ++head) {
      const int64_t row = info.first_step() + step;
      std::vector<double> gain =
          reference::attention(layer, head, reference::logits(layer, head, row)).weight;
      gain.resize(static_cast<size_t>(info.query_position[static_cast<size_t>(row)] + 1));
      for (size_t i = 0; i < gain.size(); ++i) {
        const auto value = reference::value(layer, head, static_cast<int64_t>(i));
        gain[i] *= reference::l1(reference::project(layer, head, value));
      }
      rows.push_back(std::move(gain));
    }
    return rows;
  }
  /// All pairs (importance, importance if kept) that `counts` says belong to the scope.
  void pairs(int64_t step, const std::function<bool(int64_t entry)>& counts, std::vector<double>& x,
             std::vector<double>& y) const {
    const auto rows = importance(step);
    for (size_t head = 0; head < rows.size(); ++head) {
      const int kv = static_cast<int>(head) / reader->info().group_size();
      for (size_t i = 0; i < rows[head].size(); ++i) {
        const auto entry = static_cast<int64_t>(i);
        if (!counts(entry)) continue;
        x.push_back(rows[head][i]);
        y.push_back(entry >= kPromptLength || kept(kv, entry) ? rows[head][i] : 0.0);
      }
    }
  }
  void check_scope(const std::function<bool(int64_t entry)>& counts) const {
    for (int64_t step = 0; step < 6; ++step) {
      std::vector<double> x;
      std::vector<double> y;
      pairs(step, counts, x, y);
      double x_sum = 0;
      double y_sum = 0;
      double xx = 0;
      double yy = 0;
      for (size_t k = 0; k < x.size(); ++k) {
        x_sum += x[k];
        y_sum += y[k];
        xx += x[k] * x[k];
        yy += y[k] * y[k];
      }
      const auto at = [&](const char* name) { return results.row(name, {0, 0, 0, step})[0]; };
      CHECK(at("retained_importance") == Approx(y_sum / x_sum).margin(1e-5));
      CHECK(at("importance_cosine") == Approx(std::sqrt(yy / xx)).margin(1e-5));
      CHECK(at("importance_pearson") == Approx(pearson(x, y)).margin(1e-5));
    }
  }

  TemporaryFolder folder;
  std::unique_ptr<TraceReader> reader;
  LayerTrace layer;
  Dataset results;
};

const std::set<std::string> kCorrelation = {"importance_pearson", "importance_cosine"};

}  // namespace

TEST_CASE("what is read at each step is held as a whole, with the bounds of its pages", "[study]") {
  const StudyOfSynth study(
      [](StudyOptions& options) { options.records = {Record::parse("quest,skip_layers=none")}; });
  const auto said = [&](const char* name) { return study.results.row(name, {0, 0})[0]; };
  const TraceInfo& info = study.reader->info();
  const int heads = info.num_kv_heads;
  const double slots = static_cast<double>(heads) * kPromptLength;
  CHECK(said("realised_ratio") == 1);
  CHECK(said("bytes_side") == slots * 2 * 16 * 2 / 16);  // least and largest key of 16 slots
  CHECK(said("bytes_flattened") == slots * (2 * 16 * 2 + 4) + 4 * heads);
  for (int head = 0; head < info.num_query_heads; ++head)
    CHECK(study.results.row("kept_query", {0, 0, 0, head})[0] == 16);  // a page of 24 places
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
  CHECK(hidden.results.size("policy") == 1);
  const auto mean_of = [&](int64_t policy) {
    return shown.results.row("retained_importance_mean", {policy, 0, 0})[0];
  };
  CHECK(hidden.results.row("regret_mean", {0, 0, 0})[0] == Approx(mean_of(1) - mean_of(0)));
  CHECK(shown.results.row("regret_mean", {1, 0, 0})[0] == 0);
  const auto own = shown.results.row("retained_importance", {0, 0, 0});
  const auto best = shown.results.row("retained_importance", {2, 0, 0});
  const auto regret = hidden.results.row("regret_step", {0, 0, 0});
  for (size_t t = 0; t < regret.size(); ++t) CHECK(regret[t] == Approx(best[t] - own[t]));
}

TEST_CASE("regret is measured against the oracle of the importance that is measured", "[study]") {
  for (const Norm norm : {Norm::l1, Norm::l2}) {
    const StudyOfSynth study([&](StudyOptions& o) {
      o.records = {Record::parse("oracle-mean"), Record::parse("random")};
      o.metrics = {"regret_mean"};
      o.importance = norm;
    });
    const TraceInfo& info = study.reader->info();
    const int group = info.group_size();
    std::vector<std::vector<double>> gain(static_cast<size_t>(info.num_kv_heads),
                                          std::vector<double>(kPromptLength, 0.0));
    for (int64_t step = 0; step < 6; ++step) {
      std::vector<std::vector<double>> rows;
      double total = 0;
      for (int head = 0; head < info.num_query_heads; ++head) {
        auto& row = rows.emplace_back(
            reference::attention(study.layer, head,
                                 reference::logits(study.layer, head, info.first_step() + step))
                .weight);
        row.resize(kPromptLength);
        for (size_t i = 0; i < row.size(); ++i) {
          const auto out = reference::project(
              study.layer, head, reference::value(study.layer, head, static_cast<int64_t>(i)));
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
      return study.results.row("retained_importance_mean", {policy, 0, 0})[0];
    };
    CHECK(mean_of(0) == Approx(best).epsilon(1e-5));
    CHECK(study.results.row("regret_mean", {1, 0, 0})[0] == Approx(best - mean_of(1)).margin(1e-5));
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
  const auto absolute = study.results.row("output_error_absolute", {0, 0, 0});
  const auto residual = study.results.row("residual_error", {0, 0, 0});
  const auto first = static_cast<size_t>(study.reader->info().first_step());
  for (size_t t = 0; t < absolute.size(); ++t) {
    CHECK(residual[t] == Approx(absolute[t] / study.layer.residual_norm[first + t]));
  }
}

TEST_CASE("steps that are not projected are undefined and left out of summaries", "[study]") {
  const StudyOfSynth study([](StudyOptions& o) { o.wo_steps = 2; });  // of 6: steps 0 and 3
  const auto error = study.results.row("output_error", {0, 0, 0});
  for (size_t t = 0; t < error.size(); ++t) CHECK(std::isnan(error[t]) == (t != 0 && t != 3));
  CHECK(study.results.row("output_error_mean", {0, 0, 0})[0] == Approx((error[0] + error[3]) / 2));
  CHECK(study.results.row("output_error_max", {0, 0, 0})[0] == std::max(error[0], error[3]));
}

TEST_CASE("keep rates and the mask tell the same story", "[study]") {
  const StudyOfSynth study([](StudyOptions& o) { o.span_complements = {"a"}; });
  double kept = 0;
  double outside = 0;
  for (int kv = 0; kv < 2; ++kv) {
    for (int64_t i = 0; i < kPromptLength; ++i) {
      if (i >= 4 && i < 20) kept += study.kept(kv, i);
      if (i < 4 || i >= 20) outside += study.kept(kv, i);
    }
  }
  const auto rates = study.results.row("keep_rate", {0, 0, 0});
  CHECK(rates[0] == Approx(kept / 32));
  CHECK(rates[2] == Approx(outside / 64));
  CHECK(study.results.row("bias_index", {0, 0, 0, 0})[0] == Approx(kept / 32 - 0.5));
  CHECK(study.results.row("bias_spread", {0, 0, 0})[0] == Approx(std::abs(rates[0] - rates[1])));
}

TEST_CASE("results say where the spans are, a complement from its first token to its last",
          "[study]") {
  const StudyOfSynth study([](StudyOptions& o) { o.span_complements = {"a"}; });
  const auto positions = [&](const char* name) {
    return std::get<std::vector<int64_t>>(study.results.at(name).values);
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
  CHECK(study.results.size("policy") == 2);
  CHECK(std::get<std::vector<double>>(study.results.at("budget").values) ==
        std::vector<double>{0.5, 0.25});
  CHECK(std::get<std::vector<std::string>>(study.results.at("budget_label").values) ==
        std::vector<std::string>{"50%", "12"});
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
