#include <catch2/catch.hpp>
#include <cmath>

#include "analysis/measure.hpp"

using namespace kvsim;

namespace {

/// n = 8: "a" is 1..3, "empty" 4..4, "b" 5..8.
TraceInfo trace() {
  TraceInfo info;
  info.path = "t.h5";
  info.prompt_len = 8;
  info.spans = {{"a", 1, 3}, {"empty", 4, 4}, {"b", 5, 8}};
  return info;
}

}  // namespace

TEST_CASE("keep rates are means over a span's tokens and the heads", "[analysis]") {
  const auto spans = span_tokens(trace(), {});
  const std::vector<KeptEntries> heads = {{1, 2, 7}, {0, 1, 5}};
  CHECK(keep_rate(heads, spans[0]) == Approx((1.0 + 0.5) / 2));
  CHECK(std::isnan(keep_rate(heads, spans[1])));
  CHECK(keep_rate(heads, spans[2]) == Approx(1.0 / 3));
  CHECK(keep_rate_of_head(heads[0], spans[2]) == Approx(1.0 / 3));
  CHECK(unbiased_rate(heads, 8) == Approx(6.0 / 16));
  const std::vector<double> rates = {0.75, NAN, 1.0 / 3};
  CHECK(bias_spread(rates, spans) == Approx(0.75 - 1.0 / 3));
}

TEST_CASE("a complement is every prompt token outside its span and does not count in the spread",
          "[analysis]") {
  const auto spans = span_tokens(trace(), {"a"});
  REQUIRE(spans.size() == 4);
  CHECK(spans[3].name == "!a");
  CHECK(spans[3].ranges == std::vector<Range>{{0, 1}, {3, 8}});
  CHECK(keep_rate_of_head({0, 1, 2, 7}, spans[3]) == Approx(2.0 / 6));
  const std::vector<double> rates = {0.5, NAN, 0.5, 0.1};
  CHECK(bias_spread(rates, spans) == 0);
}

TEST_CASE("a complement of an unknown span is bad data that names the nearest", "[analysis]") {
  TraceInfo info = trace();
  info.spans = {{"defense", 0, 2}};
  CHECK_THROWS_WITH(span_tokens(info, {"defence"}), Catch::Contains("defense"));
}
