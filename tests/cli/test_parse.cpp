#include <catch2/catch.hpp>

#include "cli/command.hpp"
#include "tests/io/trace_fixture.hpp"

using namespace kvsim;
using namespace kvsim::cli;
using kvsim::test::error_of;

namespace {
using Texts = std::vector<std::string>;
void require_usage(const std::function<void()>& action, const char* part) {
  const auto thrown = error_of(action);
  CHECK(thrown.fault == Fault::usage);
  CHECK_THAT(thrown.message, Catch::StartsWith("--x: ") && Catch::Contains(part));
}
}  // namespace

TEST_CASE("layer lists take numbers and ranges, in any order", "[cli]") {
  CHECK(parse_layers("0,5,10-15", "--x") == std::vector<int>{0, 5, 10, 11, 12, 13, 14, 15});
  CHECK(parse_layers("7, 3,3 ,2-4", "--x") == std::vector<int>{2, 3, 4, 7});
  CHECK(parse_layers("4-4", "--x") == std::vector<int>{4});
  for (const char* bad :
       {"", "a", "1,", ",1", "5-3", "1-", "-1", "1-2-3", "1.5", "99999999999999999999"})
    require_usage([bad] { parse_layers(bad, "--x"); }, "");
}

TEST_CASE("number lists expand ranges in exact decimals", "[cli]") {
  CHECK(expand_numbers("0.1:0.9:0.1", "--x") ==
        Texts{"0.1", "0.2", "0.3", "0.4", "0.5", "0.6", "0.7", "0.8", "0.9"});
  CHECK(expand_numbers("0.5:1:0.25", "--x") == Texts{"0.5", "0.75", "1.0"});  // stays a ratio
  CHECK(expand_numbers("1:3:1", "--x") == Texts{"1", "2", "3"});
  CHECK(expand_numbers("128:1000:256", "--x") == Texts{"128", "384", "640", "896"});
  CHECK(expand_numbers("10%:30%:10%", "--x") == Texts{"10%", "20%", "30%"});
  CHECK(expand_numbers("10%:30%:10", "--x") == Texts{"10%", "20%", "30%"});
  CHECK(expand_numbers("2.5%:7.5%:2.5%", "--x") == Texts{"2.5%", "5.0%", "7.5%"});
  CHECK(expand_numbers("0.2,20%,512", "--x") == Texts{"0.2", "20%", "512"});
  CHECK(expand_numbers("0.30:0.30:1", "--x") == Texts{"0.3"});
}

TEST_CASE("number lists that make no sense are usage errors", "[cli]") {
  require_usage([] { expand_numbers("0.1:0.9", "--x"); }, "FIRST:LAST:STEP");
  require_usage([] { expand_numbers("0.9:0.1:0.1", "--x"); }, "FIRST <= LAST");
  require_usage([] { expand_numbers("0.1:0.9:0", "--x"); }, "STEP > 0");
  require_usage([] { expand_numbers("0.1:0.9:-0.1", "--x"); }, "STEP > 0");
  require_usage([] { expand_numbers("0:1:0.00001", "--x"); }, "at most 10000");
  require_usage([] { expand_numbers("1:5:1%", "--x"); }, "%");
  require_usage([] { expand_numbers("0.1,,0.2", "--x"); }, "empty item");
  require_usage([] { expand_numbers("abc", "--x"); }, "not a number");
  require_usage([] { expand_numbers("0.1:x:1", "--x"); }, "not a number");
}

TEST_CASE("counts and reals keep to their range", "[cli]") {
  CHECK(parse_count(" 12 ", "--x", 0, 100) == 12);
  CHECK(parse_real("1e-2", "--x", 0, 1) == 0.01);
  require_usage([] { parse_count("101", "--x", 0, 100); }, "out of range");
  require_usage([] { parse_count("-1", "--x", 0, 100); }, "out of range");
  require_usage([] { parse_count("1.0", "--x", 0, 100); }, "not a whole number");
  require_usage([] { parse_count("", "--x", 0, 100); }, "not a whole number");
  require_usage([] { parse_real("2", "--x", 0, 1); }, "out of range");
  require_usage([] { parse_real("nan", "--x", 0, 1); }, "not a number");
}
