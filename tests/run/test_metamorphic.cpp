// What must not change when a trace is told in another way, for records of every family.
#include <catch2/catch.hpp>
#include <cmath>

#include "tests/sim/backend/backends.hpp"
#include "tests/support/random_run.hpp"
#include "tests/support/results.hpp"
#include "tests/support/study_case.hpp"

using namespace kvsim;
using namespace kvsim::test;

namespace {

const std::vector<std::string> kFamilies = {"snapkv,window=6",
                                            "h2o",
                                            "knorm",
                                            "restkv,window=6",
                                            "tova",
                                            "keepkv,window=6",
                                            "d2o",
                                            "streaming,sinks=2",
                                            "tova,schedule=decode"};

/// Those that do not divide a budget over layers.
const std::vector<std::string> kWithinLayers = {"snapkv,window=6", "h2o",  "knorm",
                                                "restkv,window=6", "tova", "streaming,sinks=2"};

using Change = std::function<void(RandomRun&)>;

/// Two layers of four query heads and two KV heads; `change` tells the same trace in another way.
std::unique_ptr<RandomRun> told(const Change& change) {
  auto run = random_run({.d = 8, .dv = 8, .hidden = 12, .prompt = 32, .later = 6}, {0, 1}, 2);
  run->info.probes.clear();
  for (LayerTrace& layer : run->layers) layer.probes.clear();
  change(*run);
  return run;
}

Dataset study_of(const Change& change, const std::vector<std::string>& records,
                 const std::vector<int>& layers = {0, 1}) {
  const TemporaryFolder folder;
  const auto run = told(change);
  write_trace(folder / "t.h5", run->info, run->layers);
  return test::study_of(TraceReader(folder / "t.h5"),
                        options_for(records, {"0.25", "0.5"}, layers));
}

/// A tensor whose slices 0..count-1 of the first axis come in another order.
Tensor reordered(const Tensor& tensor, const std::vector<int64_t>& order) {
  Tensor out(tensor.type(), {tensor.dim(0), tensor.dim(1), tensor.dim(2)});
  const size_t slice = tensor.bytes() / static_cast<size_t>(tensor.dim(0));
  for (size_t i = 0; i < order.size(); ++i)
    std::copy_n(tensor.row(order[i], 0), slice, out.data() + i * slice);
  return out;
}

void scale(Tensor& tensor, float factor) {
  for (int64_t a = 0; a < tensor.dim(0); ++a)
    for (int64_t b = 0; b < tensor.dim(1); ++b)
      for (int64_t c = 0; c < tensor.dim(2); ++c)
        set_element(tensor, a, b, c, factor * element(tensor, a, b, c));
}

/// Values of a variable for the policies and layers, by their places in both, agree.
void agree(const Dataset& a, const Dataset& b, const char* name, double tolerance) {
  const auto& x = std::get<std::vector<double>>(a.at(name).values);
  const auto& y = std::get<std::vector<double>>(b.at(name).values);
  REQUIRE(x.size() == y.size());
  for (size_t i = 0; i < x.size(); ++i) {
    INFO(name << " " << i << ": " << x[i] << " and " << y[i]);
    CHECK(((std::isnan(x[i]) && std::isnan(y[i])) ||
           std::fabs(x[i] - y[i]) <= tolerance * std::max(1.0, std::fabs(x[i]))));
  }
}

constexpr const char* kShares[] = {"retained_importance", "retained_attention", "output_error"};

}  // namespace

TEST_CASE("KV heads in another order lose the same", "[run][metamorphic]") {
  const auto swapped = [](RandomRun& run) {
    for (LayerTrace& layer : run.layers) {
      layer.q = reordered(layer.q, {2, 3, 0, 1});
      layer.wo = reordered(layer.wo, {2, 3, 0, 1});
      layer.k = reordered(layer.k, {1, 0});
      layer.v = reordered(layer.v, {1, 0});
    }
  };
  const Dataset a = study_of([](RandomRun&) {}, kFamilies), b = study_of(swapped, kFamilies);
  // Sums over heads come in another order; errors of float32 outputs nearly cancel.
  for (const char* name : kShares) agree(a, b, name, 1e-6);
}

TEST_CASE("values twice as large lose the same shares, to the bit", "[run][metamorphic]") {
  const auto doubled = [](RandomRun& run) {
    for (LayerTrace& layer : run.layers) scale(layer.v, 2);
  };
  const Dataset a = study_of([](RandomRun&) {}, kFamilies), b = study_of(doubled, kFamilies);
  for (const char* name : kShares) agree(a, b, name, 0);
}

TEST_CASE("queries scaled up and the scale down by two are the same attention, to the bit",
          "[run][metamorphic]") {
  const auto moved = [](RandomRun& run) {
    run.info.attention_scale /= 2;
    for (LayerTrace& layer : run.layers) {
      layer.scale /= 2;
      scale(layer.q, 2);
    }
  };
  const Dataset a = study_of([](RandomRun&) {}, {"snapkv,window=6", "h2o", "tova"});
  const Dataset b = study_of(moved, {"snapkv,window=6", "h2o", "tova"});
  for (const char* name : kShares) agree(a, b, name, 0);
}

TEST_CASE("a layer by itself loses what it loses beside others, to the bit", "[run][metamorphic]") {
  const Dataset both = study_of([](RandomRun&) {}, kWithinLayers);
  for (const int layer : {0, 1}) {
    const Dataset one = study_of([](RandomRun&) {}, kWithinLayers, {layer});
    for (int64_t p = 0; p < one.size("policy"); ++p)
      for (int64_t b = 0; b < one.size("budget"); ++b)
        for (const char* name : kShares)
          CHECK(same_numbers(both.row(name, {p, b, layer}), one.row(name, {p, b, 0})));
  }
}

TEST_CASE("a policy twice is a policy once, and its company changes nothing",
          "[run][metamorphic]") {
  const Dataset all = study_of([](RandomRun&) {}, kFamilies);
  for (size_t p = 0; p < kFamilies.size(); ++p) {
    const Dataset alone = study_of([](RandomRun&) {}, {kFamilies[p], kFamilies[p]});
    REQUIRE(alone.size("policy") == 1);
    for (int64_t b = 0; b < 2; ++b)
      for (int64_t layer = 0; layer < 2; ++layer)
        for (const char* name : kShares) {
          const auto x = all.row(name, {static_cast<int64_t>(p), b, layer});
          const auto y = alone.row(name, {0, b, layer});
          INFO(kFamilies[p] << " " << name);
          // Sums of what merges are taken in another walk where others drop beside it.
          CHECK(same_numbers(x, y, 1e-6));
        }
  }
}

TEST_CASE("rows of queries that nothing looks at may be left out", "[run][metamorphic]") {
  const auto fewer = [](RandomRun& run) {
    const int64_t first = 26;  // n - window
    for (LayerTrace& layer : run.layers) {
      Tensor kept(layer.q.type(), {layer.q.dim(0), layer.q.dim(1) - first, layer.q.dim(2)});
      for (int64_t h = 0; h < kept.dim(0); ++h)
        std::copy_n(layer.q.row(h, first), kept.bytes() / static_cast<size_t>(kept.dim(0)),
                    kept.data() + (kept.row(h, 0) - kept.data()));
      layer.q = kept;
      layer.residual_norm.erase(layer.residual_norm.begin(), layer.residual_norm.begin() + first);
    }
    run.info.query_position.erase(run.info.query_position.begin(),
                                  run.info.query_position.begin() + first);
  };
  const std::vector<std::string> records = {"snapkv,window=6", "knorm", "restkv,window=6",
                                            "streaming,sinks=2"};
  const Dataset a = study_of([](RandomRun&) {}, records), b = study_of(fewer, records);
  for (const char* name : kShares) agree(a, b, name, 0);
}

TEST_CASE("one, two and eight threads give the same bytes, every instruction set the same to 1e-5",
          "[run][metamorphic]") {
  const auto with_threads = [](int count) {
    const ForcedThreads forced(count);
    return study_of([](RandomRun&) {}, kFamilies);
  };
  const Dataset one = with_threads(1);
  for (const int count : {2, 8})
    for (const Variable& variable : one.variables())
      if (variable.type() == VariableType::float64)
        agree(one, with_threads(count), variable.name.c_str(), 0);
  for (const std::string& isa : instruction_sets()) {
    const ForcedIsa forced(isa);
    const Dataset other = study_of([](RandomRun&) {}, kFamilies);
    for (const char* name : kShares) agree(one, other, name, 1e-5);
  }
}
