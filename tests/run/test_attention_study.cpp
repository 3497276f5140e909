// Risk, dynamics and key norms of whole runs against their definitions in float64.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <numeric>

#include "analysis/statistics.hpp"
#include "sim/core/numbers.hpp"
#include "tests/reference/reference.hpp"
#include "tests/support/study_case.hpp"

using namespace kvsim;
using namespace kvsim::test;

namespace {

constexpr int64_t kPrompt = 52, kWindow = 32, kCandidates = kPrompt - kWindow;
using Rows = std::vector<std::vector<double>>;

/// A run with every measure, and the attention it was made of.
struct Measured {
  explicit Measured(int heads, int kv_heads, int variant)
      : study(shape(heads, kv_heads, variant), {}, {"streaming", "tova", "snapkv:official"},
              [](StudyOptions& o) {
    o.budgets = {Budget::parse("0.5"), Budget::parse("0.9")};
    o.seed = 7;
    o.metrics = {"risk", "attention_cdf", "late_importance", "locality", "drift", "key_norm"};
        }) {
    for (int head = 0; head < heads; ++head) {
      weight.emplace_back();
      for (int64_t i = 0; i < kPrompt; ++i)
        weight.back().push_back(reference::l1(
            reference::project(study.layer(), head, reference::value(study.layer(), head, i))));
      later.emplace_back();
      for (int64_t t = 0; t < study.info().steps(); ++t)
        later.back().push_back(study.attention(head, t));
      window.emplace_back();
      for (int64_t j = kPrompt - kWindow; j < kPrompt; ++j)
        window.back().push_back(
            reference::attention(study.layer(), head, reference::logits(study.layer(), head, j))
                .weight);
    }
  }
  static RandomTraceShape shape(int heads, int kv_heads, int variant) {
    RandomTraceShape made;
    made.query_heads = heads;
    made.kv_heads = kv_heads;
    made.dv = 12;
    made.prompt = kPrompt;
    made.later = 50;
    made.sink = variant == 1;
    made.softcap = variant == 2 ? 3 : 0;
    made.seed = static_cast<uint64_t>(3 + variant);
    for (int64_t p = 0; variant == 1 && p < kPrompt + 50; ++p)  // with gaps among later queries
      if (p < kPrompt || p % 3 != 1) made.queries.push_back(p);
    return made;
  }
  int heads() const { return study.info().num_query_heads; }
  int kv_heads() const { return study.info().num_kv_heads; }
  int group() const { return study.info().group_size(); }
  double at(const char* name, std::initializer_list<int64_t> index) const {
    return study.value(name, index);
  }

  StudyCase study;
  Rows weight;               ///< [Hq][n] ‖v W‖₁
  std::vector<Rows> later;   ///< [Hq][T][N]
  std::vector<Rows> window;  ///< [Hq][m][N]
};

std::vector<Measured> cases() {
  std::vector<Measured> all;
  all.reserve(3);
  all.emplace_back(4, 2, 0);
  all.emplace_back(16, 1, 1);
  all.emplace_back(3, 3, 2);
  return all;
}

/// Row of the estimators' indicator: importance, or attention for defensivekv.
double importance_at(const Measured& m, int head, int64_t j, int64_t i) {
  const auto at = static_cast<size_t>(i);
  return m.window[static_cast<size_t>(head)][static_cast<size_t>(j)][at] *
         m.weight[static_cast<size_t>(head)][at];
}

/// Estimates over candidates of one KV head in the order of the dimension, and their priors.
struct EstimatesOfHead {
  Rows estimate, prior;
};
EstimatesOfHead estimates_of(const Measured& m, int kv) {
  Rows s(5, std::vector<double>(kCandidates, 0.0)), prior(5);
  std::vector<double> norm(kCandidates, 0.0);
  for (int64_t i = 0; i < kCandidates; ++i) {
    const auto at = static_cast<size_t>(i);
    for (int h = kv * m.group(); h < (kv + 1) * m.group(); ++h) {
      norm[at] += m.weight[static_cast<size_t>(h)][at] / m.group();
      s[0][at] += importance_at(m, h, 15, i) / m.group();
      for (int64_t j = 0; j < kWindow; ++j) {
        const double x = importance_at(m, h, j, i);
        s[1][at] += x / kWindow / m.group();
        s[2][at] = std::max(s[2][at], x);
        double pooled = 0;
        for (int64_t c = std::max<int64_t>(0, i - 2); c <= std::min(kCandidates - 1, i + 2); ++c)
          pooled +=
              m.window[static_cast<size_t>(h)][static_cast<size_t>(j)][static_cast<size_t>(c)] / 5;
        s[4][at] = std::max(s[4][at], pooled);
      }
    }
  }
  s[3] = s[2];
  for (const size_t e : {size_t{3}, size_t{4}}) {
    prior[e].assign(kCandidates, mean(s[e]));
    for (size_t i = 0; i < s[e].size(); ++i) s[e][i] = std::max(s[e][i], prior[e][i]);
    for (size_t i = 0; e == 4 && i < s[e].size(); ++i) s[e][i] *= norm[i], prior[e][i] *= norm[i];
  }
  return {s, prior};
}

std::vector<double> true_risk(const Measured& m, int kv) {
  std::vector<double> risk(kCandidates, 0.0);
  for (int h = kv * m.group(); h < (kv + 1) * m.group(); ++h)
    for (const auto& row : m.later[static_cast<size_t>(h)])
      for (size_t i = 0; i < risk.size(); ++i)
        risk[i] = std::max(risk[i], row[i] * m.weight[static_cast<size_t>(h)][i]);
  return risk;
}

double share_below(const std::vector<double>& a, const std::vector<double>& b) {
  double count = 0;
  for (size_t i = 0; i < a.size(); ++i) count += a[i] < b[i];
  return count / static_cast<double>(a.size());
}

/// Prompt entries of largest attention, the later one first on ties.
std::vector<size_t> best(const std::vector<double>& row, size_t columns, size_t count) {
  std::vector<size_t> order(columns);
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return row[a] != row[b] ? row[a] > row[b] : a > b; });
  order.resize(count);
  return order;
}

double variance(const std::vector<double>& x) {
  double sum = 0, squares = 0;
  for (const double v : x) sum += v;
  for (const double v : x)
    squares += (v - sum / static_cast<double>(x.size())) *
               (v - sum / static_cast<double>(x.size()));
  return squares / static_cast<double>(x.size());
}

/// Q of metrics.md 5.3 as it is written.
double windowed(const Rows& rows, const std::vector<size_t>& order) {
  double within = 0, total = 0;
  for (size_t i = 0; i < kPrompt; ++i) {
    std::vector<double> series;
    for (const size_t t : order) series.push_back(rows[t][i]);
    total += variance(series);
    const size_t windows = series.size() / 16;
    for (size_t w = 0; w < windows; ++w)
      within += variance({series.begin() + static_cast<int64_t>(16 * w),
                          series.begin() + static_cast<int64_t>(16 * w + 16)}) /
                static_cast<double>(windows);
  }
  return within / total;
}

}  // namespace

TEST_CASE("true risk and what estimates make of it", "[risk]") {
  for (const Measured& m : cases()) {
    for (int64_t e = 0; e < 5; ++e) {
      std::vector<double> rank, ratio, under, above;
      for (int kv = 0; kv < m.kv_heads(); ++kv) {
        const EstimatesOfHead all = estimates_of(m, kv);
        const auto& estimate = all.estimate[static_cast<size_t>(e)];
        const auto risk = true_risk(m, kv);
        rank.push_back(spearman(estimate, risk));
        std::vector<double> logs;
        for (size_t i = 0; i < risk.size(); ++i) logs.push_back(std::log(estimate[i] / risk[i]));
        ratio.push_back(percentile(logs, 50));
        under.push_back(share_below(estimate, risk));
        if (e >= 3) above.push_back(share_below(risk, all.prior[static_cast<size_t>(e)]));
      }
      CAPTURE(m.heads(), e);
      // Entries at the prior are tied in both, so that ranks agree unless rounding splits a tie.
      CHECK(m.at("risk_spearman", {0, e}) == Approx(mean(rank)).margin(1e-6));
      CHECK(m.at("risk_log_ratio_median", {0, e}) == Approx(mean(ratio)).margin(1e-5));
      CHECK(m.at("risk_underestimated", {0, e}) == Approx(mean(under)).margin(1e-9));
      if (e >= 3)
        CHECK(m.at("risk_prior_exceeds", {0, e}) == Approx(mean(above)).margin(1e-9));
      else
        CHECK(std::isnan(m.at("risk_prior_exceeds", {0, e})));
    }
  }
}

TEST_CASE("sampled pairs of risk are entries of the layer, all of them when they are few",
          "[risk]") {
  const Measured m(4, 2, 0);
  REQUIRE(m.study.results().size("sample") == 2 * kCandidates);
  for (int kv = 0; kv < 2; ++kv) {
    const EstimatesOfHead all = estimates_of(m, kv);
    const auto risk = true_risk(m, kv);
    for (int64_t i = 0; i < kCandidates; ++i) {
      const auto at = static_cast<size_t>(i);
      CHECK(m.at("risk_true", {0, kv * kCandidates + i}) == Approx(risk[at]).epsilon(1e-5));
      for (int64_t e = 0; e < 5; ++e)
        CHECK(m.at("risk_estimate", {0, e, kv * kCandidates + i}) ==
              Approx(all.estimate[static_cast<size_t>(e)][at]).epsilon(1e-5));
    }
  }
}

TEST_CASE("the attention that the largest visible entries hold", "[dynamics]") {
  const std::vector<double> shares = {0.01, 0.02, 0.05, 0.1, 0.2, 0.5};
  for (const Measured& m : cases()) {
    for (size_t s = 0; s < shares.size(); ++s) {
      std::vector<double> held;
      for (int h = 0; h < m.heads(); ++h)
        for (int64_t t = 0; t < m.study.info().steps(); ++t) {
          const int64_t position =
              m.study.info().query_position[static_cast<size_t>(m.study.info().first_step() + t)];
          auto row = m.later[static_cast<size_t>(h)][static_cast<size_t>(t)];
          row.resize(static_cast<size_t>(position + 1));
          std::sort(row.rbegin(), row.rend());
          // A share times a whole number may be a hair above a whole number in binary.
          const auto count = static_cast<int64_t>(
              std::ceil(shares[s] * static_cast<double>(position + 1) - 1e-9));
          held.push_back(std::accumulate(row.begin(), row.begin() + count, 0.0) /
                         std::accumulate(row.begin(), row.end(), 0.0));
        }
      const auto share = static_cast<int64_t>(s);
      CHECK(m.at("attention_cdf_mean", {0, share}) == Approx(mean(held)).epsilon(1e-6));
      CHECK(m.at("attention_cdf_p05", {0, share}) == Approx(percentile(held, 5)).epsilon(1e-6));
    }
  }
}

TEST_CASE("dropped entries among those that later queries attend to most", "[dynamics]") {
  constexpr size_t kTop = kPrompt / 5;
  for (const Measured& m : cases())
    for (int64_t record = 0; record < 3; ++record)
      for (int64_t budget = 0; budget < 2; ++budget) {
        std::vector<double> share, chance, recall;
        for (int h = 0; h < m.heads(); ++h) {
          const auto gone = [&](size_t i) {
            return !m.study.kept(record, budget, h, static_cast<int64_t>(i));
          };
          std::vector<bool> ever(kPrompt, false);
          for (const auto& row : m.later[static_cast<size_t>(h)]) {
            double hits = 0;
            for (const size_t i : best(row, kPrompt, kTop)) hits += gone(i), ever[i] = true;
            share.push_back(hits / kTop);
          }
          double size = 0, found = 0;
          for (size_t i = 0; i < kPrompt; ++i) size += gone(i), found += gone(i) && ever[i];
          chance.push_back(size / kPrompt);
          if (size > 0) recall.push_back(found / size);
        }
        CHECK(m.at("late_share", {record, budget, 0}) == Approx(mean(share)));
        CHECK(m.at("late_share_chance", {record, budget, 0}) == Approx(mean(chance)));
        CHECK(m.at("late_recall", {record, budget, 0}) == Approx(mean(recall)));
      }
}

TEST_CASE("locality against random orders of the steps", "[dynamics]") {
  for (const Measured& m : cases()) {
    const size_t used = static_cast<size_t>(m.study.info().steps()) / 16 * 16;
    REQUIRE(used >= 32);
    for (int h = 0; h < m.heads(); ++h) {
      std::vector<size_t> order(used);
      std::iota(order.begin(), order.end(), size_t{0});
      const Rows& rows = m.later[static_cast<size_t>(h)];
      const double q = windowed(rows, order);
      double permuted = 0;
      for (uint64_t a = 0; a < 20; ++a) {
        std::iota(order.begin(), order.end(), size_t{0});
        std::sort(order.begin(), order.end(),
                  [&](size_t x, size_t y) { return uniform(7, a, x, 0) < uniform(7, a, y, 0); });
        permuted += windowed(rows, order) / 20;
      }
      CHECK(m.at("locality_within", {0, h}) == Approx(q).epsilon(1e-5));
      CHECK(m.at("locality_permuted", {0, h}) == Approx(permuted).epsilon(1e-5));
      CHECK(m.at("locality", {0, h}) == Approx(1 - q / permuted).margin(1e-5));
    }
  }
}

TEST_CASE("locality is undefined for fewer than 32 steps", "[dynamics]") {
  RandomTraceShape shape;
  shape.later = 31;
  const StudyCase study(shape, {}, {"streaming"},
                        [](StudyOptions& o) { o.metrics = {"locality"}; });
  for (int h = 0; h < study.info().num_query_heads; ++h)
    for (const char* variable : {"locality", "locality_within", "locality_permuted"})
      CHECK(std::isnan(study.value(variable, {0, h})));
}

TEST_CASE("drift of the entries whose removal changes the output most", "[dynamics]") {
  constexpr size_t kBest = 46 - kWindow;  // at budget 0.9; at 0.5 there is none
  for (const Measured& m : cases()) {
    Rows map(kWindow, std::vector<double>(kPrompt, 0.0));
    for (int h = 0; h < m.heads(); ++h) {
      Rows change = m.window[static_cast<size_t>(h)];
      for (size_t j = 0; j < kWindow; ++j) {
        const auto& row = m.window[static_cast<size_t>(h)][j];
        const auto z = reference::output(m.study.layer(), h, row);
        for (size_t i = 0; i < kCandidates; ++i) {
          auto gap = reference::value(m.study.layer(), h, static_cast<int64_t>(i));
          for (size_t c = 0; c < gap.size(); ++c) gap[c] = z[c] - gap[c];
          change[j][i] = row[i] / (1 - row[i]) *
                         reference::l2(reference::project(m.study.layer(), h, gap));
          map[j][i] += change[j][i] / m.heads();
        }
      }
      int64_t indicator = 0;
      for (const Rows& rows : {change, m.window[static_cast<size_t>(h)]}) {
        double front = 0, rear = 0;
        for (size_t j = 0; j < kWindow; ++j) {
          double sum = 0;
          for (const size_t i : best(rows[j], kCandidates, kBest)) sum += static_cast<double>(i);
          (j < kWindow / 2 ? front : rear) += sum / kBest / (kWindow / 2);
          CHECK(m.at("drift_position", {indicator, 1, 0, h, static_cast<int64_t>(j)}) ==
                Approx(sum / kBest));
        }
        CHECK(m.at("drift", {indicator, 1, 0, h}) == Approx(rear - front).margin(1e-9));
        CHECK(m.at("drift", {indicator, 0, 0, h}) == 0);
        CHECK(m.at("drift_width", {indicator, 1, 0, h}) == 5);
        CHECK(m.at("drift_shift", {indicator, 1, 0, h}) == 0);
        ++indicator;
      }
    }
    for (int64_t j = 0; j < kWindow; ++j)  // 52 parts of one entry each
      for (int64_t i = 0; i < kCandidates; ++i)
        CHECK(m.at("output_change_map", {0, j, i}) ==
              Approx(map[static_cast<size_t>(j)][static_cast<size_t>(i)]).epsilon(1e-4));
    CHECK(std::isnan(m.at("output_change_map", {0, 0, kCandidates})));
  }
}

TEST_CASE("key norms, where they are and what attention they get", "[dynamics]") {
  for (const Measured& m : cases())
    for (int kv = 0; kv < m.kv_heads(); ++kv) {
      std::vector<double> norms, positions(kPrompt);
      std::iota(positions.begin(), positions.end(), 0.0);
      for (int64_t i = 0; i < kPrompt; ++i) {
        std::vector<double> key;
        for (int64_t c = 0; c < m.study.info().head_dim; ++c)
          key.push_back(static_cast<double>(element(m.study.layer().k, kv, i, c)));
        norms.push_back(reference::l2(key));
        CHECK(m.at("key_norm", {0, kv, i}) == Approx(norms.back()));
      }
      CHECK(m.at("key_norm_position", {0, kv}) == Approx(spearman(norms, positions)));
      for (int h = kv * m.group(); h < (kv + 1) * m.group(); ++h) {
        std::vector<double> attention(kPrompt, 0.0);
        for (const auto& row : m.later[static_cast<size_t>(h)])
          for (size_t i = 0; i < attention.size(); ++i) attention[i] += row[i];
        CHECK(m.at("key_norm_attention_pearson", {0, h}) ==
              Approx(pearson(norms, attention)).margin(1e-6));
        CHECK(m.at("key_norm_attention_spearman", {0, h}) ==
              Approx(spearman(norms, attention)).margin(1e-6));
      }
    }
}

TEST_CASE("asking for one variable of a measure gives the measure, and no other", "[dynamics]") {
  const StudyCase study({}, {}, {"streaming"},
                        [](StudyOptions& o) { o.metrics = {"late_recall"}; });
  CHECK(study.results().has("late_share"));
  CHECK_FALSE(study.results().has("locality"));
  CHECK_FALSE(study.results().has_dimension("estimator"));
}

TEST_CASE("measures that read the window say which queries are missing", "[risk]") {
  RandomTraceShape shape;
  for (int64_t p = 20; p < shape.prompt + shape.later; ++p) shape.queries.push_back(p);
  for (const char* metric : {"risk", "drift"}) {
    const Thrown thrown = error_of([&] {
      const StudyCase study(shape, {}, {"streaming"},
                            [&](StudyOptions& o) { o.metrics = {metric}; });
    });
    CHECK(thrown.fault == Fault::bad_data);
    CHECK(thrown.message.find("8..39") != std::string::npos);
  }
}
