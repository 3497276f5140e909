#include <catch2/catch.hpp>

#include "sim/core/decimal.hpp"

using kvsim::Decimal;
using kvsim::shortest;

namespace {
Decimal of(const char* text) {
  const auto number = Decimal::parse(text);
  REQUIRE(number);
  return *number;
}
}  // namespace

TEST_CASE("a decimal typed by the user multiplies a count exactly", "[core]") {
  CHECK(of("0.2").floor_times(10) == 2);
  CHECK(of("0.3").floor_times(10) == 3);
  CHECK(of("0.29").floor_times(100) == 29);  // 28.999... in double
  CHECK(of("20%").floor_times(5) == 1);
  CHECK(of("0.1").floor_times(9) == 0);
  CHECK(of("1.0").floor_times(131072) == 131072);
  CHECK(of("1e-3").floor_times(2999) == 2);
  CHECK(of("0.5").floor_times(10, of("0.3")) == 1);
  CHECK(of("0").floor_times(7) == 0);
}

TEST_CASE("what is no number is not parsed", "[core]") {
  for (const char* text : {"", "-", ".", "1.2.3", "x", "1x", "0x10", "1e", "nan", "inf", "%", "1 2",
                           "1234567890123456789"})
    CHECK_FALSE(Decimal::parse(text));
}

TEST_CASE("a decimal is printed in its shortest form", "[core]") {
  CHECK(of("0.20").text() == "0.2");
  CHECK(of("16.0").text() == "16");
  CHECK(of("1e-4").text() == "0.0001");
  CHECK(of("35%").text() == "0.35");
  CHECK(of("-0").text() == "0");
  CHECK(shortest(0.1 + 0.2) == "0.30000000000000004");
}

TEST_CASE("one minus a decimal is exact", "[core]") {
  CHECK(of("0.9").one_minus() == of("0.1"));
  CHECK(of("0").one_minus() == of("1"));
  CHECK(of("1").one_minus() == of("0"));
}

TEST_CASE("steps of a decimal do not drift", "[core]") {
  const Decimal first = of("0.1"), step = of("0.1");
  CHECK(first.advanced(step, 2)->text() == "0.3");  // 0.30000000000000004 in double
  CHECK(*first.advanced(step, 9) == of("1"));
  CHECK(*of("0").advanced(of("0.25"), 4) == of("1.0"));
  CHECK(*of("1").advanced(of("-0.5"), 2) == of("0"));
  CHECK_FALSE(of("1e300").advanced(of("1e-10"), 1));
  CHECK_FALSE(of("999999999999999999").advanced(of("1"), 1000000000000000000));
}

TEST_CASE("decimals compare exactly", "[core]") {
  CHECK(of("0.1") < of("0.2"));
  CHECK_FALSE(of("0.2") < of("0.20"));
  CHECK(of("0.99999999999999999") < of("1"));  // equal in double
  CHECK(of("-2") < of("-1.5"));
  CHECK(of("0") < of("1e-300"));
}
