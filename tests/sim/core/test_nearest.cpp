#include <catch2/catch.hpp>

#include "sim/core/prelude.hpp"

using namespace kvsim;

TEST_CASE("a mistyped name finds its neighbours, nearest first", "[core]") {
  const std::vector<std::string> names = {"snapkv", "streaming", "random", "h2o", "tova"};
  CHECK(nearest_names("snpakv", names).at(0) == "snapkv");
  CHECK(nearest_names("straming", names).at(0) == "streaming");
  CHECK(nearest_names("stream", names).at(0) == "streaming");
  CHECK(nearest_names("completely-else", names).empty());
  CHECK(did_you_mean("tovq", names) == "did you mean tova?");
  const std::vector<std::string> pools = {"avg", "max", "none"};
  CHECK(nearest_names("mean", pools) == std::vector<std::string>{"avg"});
  CHECK(nearest_names("off", pools).at(0) == "none");
  CHECK(did_you_mean("xyzxyz", names).empty());
}

TEST_CASE("an error is one line with where, what, found, expected and hint", "[core]") {
  const Error full(Fault::usage,
                   {.what = "bad", .where = "--x", .found = "1", .expected = "2", .hint = "try 2"});
  CHECK(std::string(full.what()) == "--x: bad: found 1, expected 2 (try 2)");
  const Error part(Fault::bad_data, {.what = "line\nbreak", .where = "f"});
  CHECK(std::string(part.what()) == "f: line break");
  CHECK(part.fault() == Fault::bad_data);
}
