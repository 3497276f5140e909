#include <algorithm>
#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>

#include "io/side_files.hpp"
#include "tests/support/study_case.hpp"

using namespace kvsim;
using namespace kvsim::test;
using nlohmann::json;

namespace {

/// A synthetic trace and its replay, by default with what became of every entry.
struct Fixture : Synthesized {
  explicit Fixture(const std::string& more = "--save-keep")
      : Synthesized("--dtype float32 --spans rules:10-20") {
    REQUIRE(
        replay("--policy snapkv,window=8 --policy streaming --budget 0.2,30 -q " + more).status ==
        0);
  }
  json explain(const std::string& more = "") const {
    const Outcome outcome = run_kvsim("explain " + results + " --json --top 60 " + more);
    INFO(outcome.err);
    REQUIRE(outcome.status == 0);
    return json::parse(outcome.out);
  }
};

}  // namespace

TEST_CASE("explain takes the step of the largest stream error, there the layer that kept least",
          "[cli]") {
  const Fixture fixture;
  const json found = fixture.explain();
  const Dataset results = read_results(fixture.results);
  const auto& steps = std::get<std::vector<int64_t>>(results.at("step").values);
  const auto& errors = std::get<std::vector<double>>(results.at("stream_error").values);
  const auto most = std::max_element(errors.begin(), errors.end()) - errors.begin();
  const auto count = static_cast<int64_t>(steps.size());
  const int64_t step = most % count;
  const int64_t budget = most / count % results.size("budget");
  const int64_t policy = most / count / results.size("budget");
  const auto named = [&](const char* variable, int64_t index) {
    return std::get<std::vector<std::string>>(
        results.at(variable).values)[static_cast<size_t>(index)];
  };
  CHECK(found["policy"] == named("policy", policy));
  CHECK(found["budget"] == named("budget_label", budget));
  CHECK(found["step"] == steps[static_cast<size_t>(step)]);
  double least = 1;
  for (int64_t layer = 0; layer < results.size("layer"); ++layer)
    least = std::min(least, results.row("retained_importance",
                                        {policy, budget, layer})[static_cast<size_t>(step)]);
  // Sums of float32 products in another order.
  CHECK(found["retained_importance"].get<double>() == Approx(least).margin(1e-5));
  CHECK_THAT(run_kvsim("explain " + fixture.results).out, Catch::Contains("sorted by lost"));
  double importance = 0;
  double lost = 0;
  for (const json& token : found["prompt"]) {
    importance += token["importance"].get<double>();
    lost += token["lost"].get<double>();
  }
  CHECK(importance == Approx(1));
  CHECK(1 - lost == Approx(found["retained_importance"].get<double>()));
}

TEST_CASE("explained losses are those of a naive computation, most lost first", "[cli]") {
  const Fixture fixture;
  const json found = fixture.explain("--policy snapkv,window=8 --budget 30 --layer 1 --step 65");
  const TraceReader reader(fixture.trace);
  const LayerTrace trace = reader.read_layer(1);
  const Dataset results = read_results(fixture.results);
  const auto& positions = reader.info().query_position;
  const int64_t query = std::ranges::find(positions, 65) - positions.begin();
  std::vector<double> lost(60, 0.0);
  double total = 0;
  for (int head = 0; head < reader.info().num_query_heads; ++head) {
    const std::vector<double> importance = importance_of(trace, head, query);
    const auto mask = results.row<uint8_t>("kept_mask",
                                           {0, 1, 1, head / reader.info().group_size()});
    for (size_t i = 0; i < 60; ++i) {
      total += importance[i];
      if (mask[i] != 1) lost[i] += importance[i];
    }
  }
  for (size_t i = 0; i < 60; ++i)  // float32 attention
    CHECK(found["prompt"][i]["lost"].get<double>() == Approx(lost[i] / total).margin(1e-6));
  double before = 1;
  for (const json& token : found["lost"]) {
    CHECK(token["lost"].get<double>() <= before);
    before = token["lost"].get<double>();
    const int position = token["position"].get<int>();
    CHECK(token["span"] == (position >= 10 && position < 20 ? "rules" : ""));
    // What was evicted by score is ranked behind the 22 candidates that were kept beside the
    // window of 8.
    CHECK(token["rank"].get<int>() > 22);
    CHECK(token["ranked"] == 52);
  }
}

TEST_CASE("explain refuses what it cannot explain", "[cli]") {
  const Fixture fixture;
  const Fixture without("");
  const auto refused = [&](const std::string& arguments, const std::string& message) {
    check_refused(run_kvsim("explain " + arguments), 3, message);
  };
  refused(without.results, "--save-keep writes it");
  refused(fixture.results + " --policy h2o", "do not have this policy");
  refused(fixture.results + " --layer 7", "one of 0; 1");
  refused(fixture.results + " --step 10", " from 60 to ");
  refused(fixture.results + " --trace data/sample.h5", "not the trace of these results");
  refused(fixture.trace, "");
  refused((fixture.folder / "absent.nc"), "absent.nc");
  CHECK(run_kvsim("explain " + fixture.results + " --top 0").status == 2);
}

TEST_CASE("theory prints closed forms beside a simulation that agrees", "[cli]") {
  const Outcome table = run_kvsim("theory --samples 2000");
  CHECK(table.status == 0);
  CHECK_THAT(table.out, Catch::Contains("E[max(X, prior)]"));
  CHECK(table.out.find("beyond 4") == std::string::npos);
  const Outcome outcome = run_kvsim("theory --m 8 --dwell 4 --samples 2000 --json");
  const json document = json::parse(outcome.out);
  CHECK(document["kvsim"] == "theory");
  CHECK(document["windows"].size() == 4);  // 1, 2, 4, 8
  for (const json& row : document["rows"]) CHECK(row["agrees"] == true);
  CHECK(document["rows"] == document["windows"].back()["rows"]);
  for (const char* wrong :
       {"--a 0.6", "--epsilon 0", "--prior 2", "--dwell 0.5", "--m 0", "--epsilon 0.9 --dwell 2"}) {
    INFO(wrong);
    check_refused(run_kvsim(std::string("theory ") + wrong), 2, "");
  }
}
