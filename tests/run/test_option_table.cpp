// Options of how to measure: one declaration serves help, sweep files, the names of units and the
// record in the results.
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "run/study/study.hpp"
#include "run/sweep/sweep.hpp"
#include "tests/io/trace_fixture.hpp"

namespace kvsim {
namespace {

/// A value that is not the default: as a sweep file has it, and set.
std::string changed(const StudyOption& option, StudyOptions& options) {
  if (option.type == OptionType::names) {
    const std::string name = option.known ? option.known().front() : "defense";
    option.add_name(options, name);
    return option.key + " = [\"" + name + "\"]\n";
  }
  if (option.type == OptionType::flag) {
    option.set_number(options, 1);
    return option.key + " = true\n";
  }
  if (option.type == OptionType::word) {
    option.set_number(options, static_cast<double>(option.words.size() - 1));
    return option.key + " = \"" + option.words.back() + "\"\n";
  }
  const bool count = option.type == OptionType::count;
  const double value = count ? 7 : option.high <= 1 ? 0.25 : 2.5e9;
  option.set_number(options, value);
  return option.key + " = " + (count ? "7" : value < 1 ? "0.25" : "2.5e9") + "\n";
}

TEST_CASE("every option changes the text that names a unit, and a sweep file sets it", "[sweep]") {
  const StudyOptions usual;
  std::string everything = "traces = [\"t.h5\"]\nbudgets = [0.5]\n";
  StudyOptions all;
  for (const StudyOption& option : study_options()) {
    CAPTURE(option.key);
    StudyOptions options;
    changed(option, options);
    CHECK(options_text(options) != options_text(usual));
    CHECK(options_text(options).at(option.key) == option.read(options));
    CHECK_FALSE(option.meaning.empty());
    everything += changed(option, all);
  }
  everything += "[[policy]]\npreset = \"snapkv\"\n";
  CHECK(options_text(parse_sweep_config(everything, "sweep.toml").options) == options_text(all));
}

TEST_CASE("how a file was measured is read back from its record", "[results]") {
  StudyOptions all;
  for (const StudyOption& option : study_options()) changed(option, all);
  Dataset results;
  CHECK(options_text(options_of(results)) == options_text(StudyOptions()));
  results.set_attribute("config", options_text(all).dump());
  CHECK(options_text(options_of(results)) == options_text(all));
  results.set_attribute("config", R"({"outlier": 3, "scope": "some", "per_head": "yes"})");
  CHECK(options_text(options_of(results)) == options_text(StudyOptions()));
  results.set_attribute("config", "no JSON");
  CHECK(options_text(options_of(results)) == options_text(StudyOptions()));
}

TEST_CASE("a value that an option does not take is refused with what it takes", "[sweep]") {
  const auto refusal = [](const std::string& line) {
    const std::string file = "budgets = [0.5]\n" + line + "\n[[policy]]\npreset = \"snapkv\"\n";
    return test::error_of([&] { parse_sweep_config(file, "s.toml"); }).message;
  };
  using Catch::Matchers::Contains;
  CHECK_THAT(refusal("element_bytes = 17"), Contains("an integer in [1, 16]"));
  CHECK_THAT(refusal("horizon = 1.5"), Contains("an integer >= 1"));
  CHECK_THAT(refusal("outlier = 2"), Contains("a number in [0, 1]"));
  CHECK_THAT(refusal("peak = 0"), Contains("a number > 0"));
  CHECK_THAT(refusal("scope = \"some\""), Contains("one of prompt, evictable, all"));
  CHECK_THAT(refusal("save_keep = 1"), Contains("true or false"));
  CHECK_THAT(refusal("peak = 1e12"), Contains("no bandwidth"));
}

}  // namespace
}  // namespace kvsim
