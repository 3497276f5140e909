#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <nlohmann/json.hpp>
#include <vector>

#include "io/results_reader.hpp"
#include "io/trace_reader.hpp"
#include "tests/io/trace_fixture.hpp"

using namespace kvsim;
using namespace kvsim::test;
using nlohmann::json;

namespace {

/// A synthetic trace and its replay, by default with what became of every entry.
struct Fixture {
  TemporaryFolder folder;
  std::string trace = folder / "t.h5";
  std::string results = folder / "r.nc";
  explicit Fixture(const std::string& more = "--save-keep") {
    REQUIRE(run_kvsim("synth -o " + trace +
                      " --prompt 60 --steps 12 --head-dim 16 --hidden 32 "
                      "--dtype float32 --spans rules:10-20")
                .status == 0);
    REQUIRE(run_kvsim("replay " + trace +
                      " --policy snapkv,window=8 --policy streaming "
                      "--budget 0.2,30 -q -o " +
                      results + " " + more)
                .status == 0);
  }
  json explain(const std::string& more = "") const {
    const Outcome outcome = run_kvsim("explain " + results + " --json --top 60 " + more);
    INFO(outcome.err);
    REQUIRE(outcome.status == 0);
    return json::parse(outcome.out);
  }
};

/// Importance of each prompt entry in one query head at one step, one number at a time.
std::vector<double> naive_importance(const LayerTrace& trace, int head, size_t query) {
  const TraceInfo& info = *trace.info;
  const int kv = head / info.group_size();
  const int64_t last = info.query_position[query];
  const auto row = [](const Tensor& tensor, int64_t a, int64_t b) {
    std::vector<float> values(static_cast<size_t>(tensor.dim(2)));
    tensor.read(a, b, b + 1, values.data());
    return values;
  };
  const std::vector<float> q = row(trace.q, head, static_cast<int64_t>(query));
  std::vector<double> weights;
  double sum = 0;
  for (int64_t i = 0; i <= last; ++i) {
    const std::vector<float> k = row(trace.k, kv, i);
    double dot = 0;
    for (size_t x = 0; x < q.size(); ++x) dot += static_cast<double>(q[x]) * k[x];
    weights.push_back(std::exp(trace.scale * dot));
    sum += weights.back();
  }
  for (int64_t i = 0; i < info.prompt_len; ++i) {
    const std::vector<float> v = row(trace.v, kv, i);
    std::vector<double> projected(static_cast<size_t>(trace.wo.dim(2)), 0.0);
    for (size_t x = 0; x < v.size(); ++x) {
      const std::vector<float> w = row(trace.wo, head, static_cast<int64_t>(x));
      for (size_t y = 0; y < w.size(); ++y) projected[y] += static_cast<double>(v[x]) * w[y];
    }
    double norm = 0;
    for (const double y : projected) norm += std::abs(y);
    weights[static_cast<size_t>(i)] *= norm / sum;
  }
  weights.resize(static_cast<size_t>(info.prompt_len));
  return weights;
}

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
  size_t query = 0;
  while (reader.info().query_position[query] != 65) ++query;
  std::vector<double> lost(60, 0.0);
  double total = 0;
  for (int head = 0; head < reader.info().num_query_heads; ++head) {
    const std::vector<double> importance = naive_importance(trace, head, query);
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
    const Outcome outcome = run_kvsim("explain " + arguments);
    INFO(outcome.err);
    CHECK(outcome.status == 3);
    CHECK_THAT(outcome.err, Catch::Contains(message));
    CHECK(std::count(outcome.err.begin(), outcome.err.end(), '\n') == 1);
  };
  refused(without.results, "--save-keep writes it");
  refused(fixture.results + " --policy h2o", "do not have this policy");
  refused(fixture.results + " --layer 7", "one of 0; 1");
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
    const Outcome refused = run_kvsim(std::string("theory ") + wrong);
    INFO(wrong << ": " << refused.err);
    CHECK(refused.status == 2);
    CHECK(std::count(refused.err.begin(), refused.err.end(), '\n') == 1);
  }
}
