// Over how many entries attention is spread, against its definition in float64.
#include <catch2/catch.hpp>
#include <cmath>

#include "analysis/formulas.hpp"
#include "tests/support/study_case.hpp"

using namespace kvsim;
using namespace kvsim::test;

namespace {

double perplexity(std::vector<double> weights) {
  double sum = 0, entropy = 0;
  for (const double weight : weights) sum += weight;
  for (const double weight : weights)
    if (weight > 0) entropy -= weight / sum * std::log(weight / sum);
  return std::exp(entropy);
}

double spread_of(const std::vector<double>& weights) {
  Spread spread;
  for (const double weight : weights) spread.add(weight);
  return spread.entries();
}

}  // namespace

TEST_CASE("equal shares count every entry, a single one counts one", "[analysis]") {
  CHECK(spread_of({0.25, 0.25, 0.25, 0.25}) == Approx(4));
  CHECK(spread_of({0.1, 0.1}) == Approx(2));  // shares of what there is
  CHECK(spread_of({0, 0.7, 0}) == Approx(1));
  CHECK(spread_of({0.9, 0.1}) == Approx(1.3841).epsilon(1e-4));  // exp(0.3251)
  CHECK(spread_of({0, 0}) == 0);
}

TEST_CASE("effective entries are counted on the prompt and within what was kept", "[measures]") {
  RandomTraceShape shape;
  shape.sink = GENERATE(false, true);
  const StudyCase study(
      shape, {},
      {"snapkv,window=4", "snapkv:official,window=4", "tova:official", "oracle-step", "full"},
      [](StudyOptions& o) { o.metrics = {"effective_entries"}; });
  const int64_t n = study.info().prompt_len, steps = study.info().steps();
  for (int head = 0; head < study.info().num_query_heads; ++head) {
    double all = 0;
    std::vector<double> kept(2, 0.0);
    for (int64_t step = 0; step < steps; ++step) {
      std::vector<double> row = study.attention(head, step);
      row.resize(static_cast<size_t>(n));
      all += perplexity(row) / static_cast<double>(steps);
      for (size_t p = 0; p < kept.size(); ++p) {
        std::vector<double> left = row;
        for (int64_t i = 0; i < n; ++i)
          if (!study.kept(static_cast<int64_t>(p), 0, head, i)) left[static_cast<size_t>(i)] = 0;
        kept[p] += perplexity(left) / static_cast<double>(steps);
      }
    }
    CHECK(study.value("effective_entries", {0, head}) == Approx(all).epsilon(1e-5));
    CHECK(study.value("effective_entries_kept", {0, 0, 0, head}) == Approx(kept[0]).epsilon(1e-5));
    CHECK(study.value("effective_entries_kept", {1, 0, 0, head}) == Approx(kept[1]).epsilon(1e-5));
    CHECK(std::isnan(study.value("effective_entries_kept", {2, 0, 0, head})));
    CHECK(std::isnan(study.value("effective_entries_kept", {3, 0, 0, head})));
    CHECK(study.value("effective_entries_kept", {4, 0, 0, head}) ==
          study.value("effective_entries", {0, head}));
  }
}
