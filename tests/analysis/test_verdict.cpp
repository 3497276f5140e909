#include <catch2/catch.hpp>

#include "analysis/verdict.hpp"
#include "io/tables.hpp"

namespace kvsim {
namespace {

Variable real(const char* name, std::vector<std::string> dims, std::vector<double> values) {
  Variable variable;
  variable.name = name;
  variable.dims = std::move(dims);
  variable.values = std::move(values);
  return variable;
}

/// Four policies at two budgets over 64 steps with constant errors, but "close" swings about
/// "good".
Dataset results() {
  const double level[4][2] = {{0.4, 0.2}, {0.1, 0.3}, {0.1, 0.1}, {0.01, 0.01}};
  constexpr int kSteps = 64;
  Dataset dataset;
  dataset.add_dimension("policy", 4);
  dataset.add_dimension("budget", 2);
  dataset.add_dimension("step", kSteps);
  Variable policy = real("policy", {"policy"}, {});
  policy.values = std::vector<std::string>{"bad", "close", "good", "oracle"};
  Variable label = real("budget_label", {"budget"}, {});
  label.values = std::vector<std::string>{"0.1", "0.5"};
  std::vector<double> errors;
  std::vector<double> summary;
  for (int p = 0; p < 4; ++p)
    for (int b = 0; b < 2; ++b) {
      for (int t = 0; t < kSteps; ++t)
        errors.push_back(level[p][b] * (p == 1 ? (t < 32 ? 0.8 : 1.25) : 1));
      summary.push_back(level[p][b] * (p == 1 ? 1.05 : 1));
    }
  dataset.add(policy);
  dataset.add(label);
  dataset.add(real("budget", {"budget"}, {0.1, 0.5}));
  dataset.add(real("stream_error", {"policy", "budget", "step"}, errors));
  dataset.add(real("stream_error_rms", {"policy", "budget"}, summary));
  return dataset;
}

}  // namespace

TEST_CASE("a verdict sorts by stream error, marks the best and what is not told apart",
          "[verdict]") {
  using Mark = Verdict::Mark;
  const Dataset dataset = results();
  const Verdict found = verdict(dataset, {false, false, false, true});
  CHECK(found.order == std::vector<int64_t>{2, 1, 0, 3});
  CHECK(found.apart == std::vector<bool>{false, false, false, true});
  CHECK(found.marks[2] == std::vector<Mark>{Mark::best, Mark::best});
  CHECK(found.marks[1] == std::vector<Mark>{Mark::equal, Mark::none});
  CHECK(found.marks[0] == std::vector<Mark>{Mark::none, Mark::none});
  CHECK(found.marks[3] == std::vector<Mark>{Mark::none, Mark::none});
  CHECK(advice(dataset, found) ==
        "on this text use good at 0.1, 0.5; next: 2 policies cannot be told apart at 0.1: replay "
        "more traces\n");
  CHECK(verdict(Dataset(), {}).order.empty());
}

TEST_CASE("long names keep what tells them apart", "[verdict]") {
  const std::vector<std::string> names = {"snapkv", "snapkv,quantize=per-token,quant_bits=2",
                                          "snapkv,quantize=per-token,quant_bits=4",
                                          "h2o,quantize=per-token,quant_bits=4"};
  CHECK(distinct_names(names, 20) == std::vector<std::string>{"snapkv", "snapkv,..,quant_bits=2",
                                                              "snapkv,..,quant_bits=4",
                                                              "h2o,quantize=per-..."});
  CHECK(distinct_names(names, 80) == names);
}

}  // namespace kvsim
