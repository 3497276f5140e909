#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "run/study/study.hpp"
#include "run/sweep/sweep.hpp"
#include "sim/policy/presets.hpp"

namespace kvsim {
namespace {

nlohmann::json axes_of(const std::string& toml) {
  const SweepConfig config = parse_sweep_config("budgets = [0.5]\n" + toml, "s.toml");
  return nlohmann::json::parse(grid_axes_json(config.options.records));
}

nlohmann::json axis(std::vector<std::string> keys, std::vector<std::vector<std::string>> values,
                    std::vector<std::string> original) {
  return {{"keys", keys}, {"values", values}, {"default", original}};
}

TEST_CASE("crossed keys are axes with their values as typed and the preset's own", "[sweep]") {
  const auto axes = axes_of("[[policy]]\npreset = [\"snapkv\", \"snapkv:official\"]\n"
                            "window = [128, 8]\nkernel = [5, 7]\n");
  REQUIRE(axes.size() == 2);
  const auto own = [](const char* name, const char* key) {
    return Record::parse(name).settings.text(key);
  };
  for (const char* name : {"snapkv", "snapkv:official"}) {
    CHECK(axes[name] == nlohmann::json{axis({"kernel"}, {{"5"}, {"7"}}, {own(name, "kernel")}),
                                       axis({"window"}, {{"128"}, {"8"}}, {own(name, "window")})});
  }
}

TEST_CASE("keys that always change together are one axis, over all tables of a preset", "[sweep]") {
  const auto axes = axes_of("[[policy]]\npreset = \"restkv\"\nzip = [\"aggregate\", \"smooth\"]\n"
                            "aggregate = [\"ema\", \"mean\"]\nsmooth = [\"aws\", \"none\"]\n"
                            "[[policy]]\npreset = \"restkv\"\nwindow = 8\n");
  CHECK(axes["restkv"] ==
        nlohmann::json{
            axis({"aggregate", "smooth"}, {{"ema", "aws"}, {"mean", "none"}}, {"ema", "aws"}),
            axis({"window"}, {{Record::parse("restkv").settings.text("window")}, {"8"}},
                 {Record::parse("restkv").settings.text("window")})});
}

TEST_CASE("a key that another one decides is no axis", "[sweep]") {
  // Each window has its sinks, but two windows have the same.
  const auto axes = axes_of("[[policy]]\npreset = \"snapkv\"\nzip = [\"window\", \"sinks\"]\n"
                            "window = [8, 16, 64]\nsinks = [4, 4, 0]\n");
  REQUIRE(axes["snapkv"].size() == 1);
  CHECK(axes["snapkv"][0]["keys"] == std::vector<std::string>{"window"});
}

TEST_CASE("a preset that means nothing without a file has axes like any other", "[sweep]") {
  const std::vector<Record> records = {Record::parse("duo,table=a.txt,sinks=4"),
                                       Record::parse("duo,table=a.txt,sinks=8")};
  const auto axes = nlohmann::json::parse(grid_axes_json(records));
  CHECK(axes["duo"] ==
        nlohmann::json{axis({"sinks"}, {{"4"}, {"8"}},
                            {preset_settings(*find_preset("duo", "")).text("sinks")})});
}

TEST_CASE("a preset with one record has no axes", "[sweep]") {
  CHECK(axes_of("[[policy]]\npreset = [\"snapkv\", \"h2o\"]\n") == nlohmann::json::object());
}

}  // namespace
}  // namespace kvsim
