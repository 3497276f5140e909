#include <catch2/catch.hpp>
#include <limits>
#include <nlohmann/json.hpp>

#include "io/side_files.hpp"
#include "tests/support/results.hpp"

using namespace kvsim;
using test::add;

namespace {

/// Two policies at one budget, two layers, one span.
Dataset small() {
  Dataset dataset;
  constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
  add(dataset, "policy", std::vector<std::string>{"snapkv,window=16", "knorm"});
  add(dataset, "budget", std::vector<double>{0.25});
  add(dataset, "layer", std::vector<int32_t>{0, 7});
  add(dataset, "step", std::vector<int64_t>{10});
  add(dataset, "span", std::vector<std::string>{"a \"b\""});
  add(dataset, "budget_label", std::vector<std::string>{"25%"});
  add(dataset, "retained_importance", std::vector<double>{1, 1, 1, 1});
  add(dataset, "retained_importance_mean", std::vector<double>{0.8, 0.4, 0.1, kNaN});
  add(dataset, "retained_importance_min", std::vector<double>{0.5, 0.3, 0.1, kNaN});
  add(dataset, "outlier_count", std::vector<double>{1, 2, 0, kNaN});
  add(dataset, "keep_rate", std::vector<double>{0.25, 0.5, 0.75, 1});
  add(dataset, "compression", std::vector<double>{4, 3.96});
  return dataset;
}

}  // namespace

TEST_CASE("the tidy table has one row per summary and none per step", "[tables]") {
  const Dataset dataset = small();
  const std::string csv = tidy_csv({{"t.h5", &dataset}});
  CHECK_THAT(csv,
             Catch::StartsWith("policy,budget,layer,metric,value,head,kv_head,span\n"
                               "\"snapkv,window=16\",0.25,0,retained_importance_mean,0.8,,,\n"));
  CHECK_THAT(csv, Catch::Contains("knorm,0.25,7,retained_importance_mean,nan,,,\n"));
  CHECK_THAT(csv, Catch::Contains("knorm,0.25,7,keep_rate,1,,,\"a \"\"b\"\"\"\n"));
  CHECK_THAT(csv, Catch::Contains("knorm,0.25,,compression,3.96,,,\n"));
  CHECK(std::count(csv.begin(), csv.end(), '\n') == 1 + 4 * 4 + 2);
}

TEST_CASE("measures without a policy are in the tables with columns of their own", "[tables]") {
  Dataset dataset = small();
  add(dataset, "estimator", std::vector<std::string>{"single", "mean"});
  add(dataset, "risk_spearman", std::vector<double>{0.1, 0.2, 0.3, 0.4});
  const std::string csv = tidy_csv({{"t.h5", &dataset}});
  CHECK_THAT(csv,
             Catch::StartsWith("policy,budget,layer,metric,value,head,kv_head,span,estimator\n"));
  CHECK_THAT(csv, Catch::Contains("\n,,7,risk_spearman,0.3,,,,single\n"));
  const auto rows = nlohmann::json::parse(tidy_json({{"t.h5", &dataset}}));
  const nlohmann::json last = {
      {"layer", 7}, {"estimator", "mean"}, {"metric", "risk_spearman"}, {"value", 0.4}};
  CHECK(rows.back() == last);
}

TEST_CASE("several results files are told apart by their trace", "[tables]") {
  const Dataset dataset = small();
  const std::string csv = tidy_csv({{"a.h5", &dataset}, {"b,1.h5", &dataset}});
  CHECK_THAT(csv, Catch::StartsWith("policy,budget,layer,metric,value,head,kv_head,span,trace\n"));
  CHECK_THAT(csv, Catch::EndsWith(",compression,3.96,,,,\"b,1.h5\"\n"));
}

TEST_CASE("JSON holds the same rows, undefined values as null", "[tables]") {
  const Dataset dataset = small();
  const auto rows = nlohmann::json::parse(tidy_json({{"t.h5", &dataset}}));
  REQUIRE(rows.size() == 18);
  CHECK(rows[0]["policy"] == "snapkv,window=16");
  CHECK(rows[0]["layer"] == 0);
  CHECK(rows[3]["value"].is_null());
  CHECK(rows[12]["span"] == "a \"b\"");
  CHECK_FALSE(rows[17].contains("layer"));
  CHECK(rows[17]["value"] == 3.96);
}

TEST_CASE("the summary takes means of means, the worst of the worst and sums of counts",
          "[tables]") {
  const Dataset dataset = small();
  CHECK(summary_table(dataset, {}) ==
        "                          retained  importance\n"
        "policy            budget      mean       worst  outliers  smaller\n"
        "snapkv,window=16     25%     0.600       0.300         3     4.0x\n"
        "knorm                25%     0.100       0.100         0     4.0x\n");
}

TEST_CASE("stream error leads the summary, and a last line says when it is of some layers",
          "[tables]") {
  Dataset dataset = small();
  add(dataset, "stream_error_rms", std::vector<double>{0.25, 0.0625});
  dataset.set_attribute("num_layers", int64_t{2});
  const std::string table =
      "                          stream  retained  importance\n"
      "policy            budget   error      mean       worst  outliers  smaller\n"
      "snapkv,window=16     25%   0.250     0.600       0.300         3     4.0x\n"
      "knorm                25%   0.062     0.100       0.100         0     4.0x\n";
  CHECK(summary_table(dataset, {}) == table);
  dataset.set_attribute("num_layers", int64_t{12});
  CHECK(summary_table(dataset, {}) == table + "stream error: of 2 of the model's 12 layers\n");
}

TEST_CASE("colours come only when asked for and long names are cut to the terminal", "[tables]") {
  const Dataset dataset = small();
  CHECK(summary_table(dataset, {}).find('\033') == std::string::npos);
  CHECK_THAT(summary_table(dataset, {.color = true}), Catch::Contains("\033[31m"));
  CHECK_THAT(summary_table(dataset, {.color = false, .width = 40}), Catch::Contains("knorm"));
}
