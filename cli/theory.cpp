#include "analysis/theory.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "cli/command.hpp"
#include "cli/terminal.hpp"

namespace kvsim::cli::theory_command {
namespace {

using Json = nlohmann::ordered_json;

RiskModel read_model(const Values& values) {
  constexpr double kHuge = 1e12;
  RiskModel model;
  model.m = count_of(values, "m", model.m, 1, 1 << 12);
  model.epsilon = real_of(values, "epsilon", model.epsilon, 1e-9, 1);
  model.a = real_of(values, "a", model.a, 0, kHuge);
  model.b = real_of(values, "b", model.b, 0, kHuge);
  model.c = real_of(values, "c", model.c, 0, kHuge);
  if (model.a > model.b || model.b >= model.c)
    usage_error({"levels out of order", "theory",
                 fmt::format("--a {} --b {} --c {}", model.a, model.b, model.c), "a <= b < c"});
  model.prior = real_of(values, "prior", std::min(model.prior, model.c), 0, model.c);
  model.steady = real_of(values, "steady", model.steady, 0, kHuge);
  if (!has(values, "dwell")) return model;
  model.dwell = real_of(values, "dwell", 1, 1, kHuge);
  if (model.epsilon == 1 || model.entering() > 1)
    usage_error({"no such chain", "--dwell",
                 fmt::format("{} with --epsilon {}", *model.dwell, model.epsilon),
                 "epsilon / ((1 - epsilon) * dwell) of at most 1"});
  return model;
}

/// Window sizes of the curves: powers of two, and m.
std::vector<int64_t> sizes_up_to(int64_t m) {
  std::vector<int64_t> sizes;
  for (int64_t size = 1; size < m; size *= 2) sizes.push_back(size);
  sizes.push_back(m);
  return sizes;
}

Json number(double value) { return std::isnan(value) ? Json(nullptr) : Json(value); }

Json json_of(const RiskModel& model, int64_t samples) {
  Json parameters = {
      {"m", model.m}, {"epsilon", model.epsilon}, {"a", model.a},           {"b", model.b},
      {"c", model.c}, {"prior", model.prior},     {"steady", model.steady}, {"samples", samples}};
  parameters["dwell"] = model.dwell ? Json(*model.dwell) : Json(nullptr);
  return parameters;
}

Json json_of(const std::vector<RiskRow>& rows, int64_t samples) {
  Json list = Json::array();
  for (const RiskRow& row : rows)
    list.push_back({{"quantity", row.quantity},
                    {"closed_form", number(row.closed_form)},
                    {"monte_carlo", row.sampled.mean},
                    {"standard_error", row.sampled.standard_error},
                    {"bound", row.bound},
                    {"agrees", row.agrees(samples)}});
  return list;
}

/// P(max <= x) on an even grid over [0, c], closed and sampled.
Json distribution(const RiskModel& model, int64_t samples, uint64_t seed) {
  constexpr int kPoints = 200;
  std::vector<double> x;
  std::vector<double> closed;
  const std::vector<double> counts = high_counts(model);
  for (int i = 0; i <= kPoints; ++i) {
    x.push_back(model.c * i / kPoints);
    closed.push_back(max_distribution(model, counts, x.back()));
  }
  return {{"x", x},
          {"closed_form", closed},
          {"monte_carlo", sampled_max_distribution(model, x, samples, seed)}};
}

void print_table(const RiskModel& model, const std::vector<RiskRow>& rows, int64_t samples) {
  fmt::print("{}, high on [{:g}, {:g}] with probability {:g}, else low on [0, {:g}]; "
             "true risk {:g}\n",
             counted(model.m, "observation"), model.b, model.c, model.epsilon, model.a, model.c);
  if (model.dwell) {
    fmt::print("Markov chain: a high state lasts {:g} observations on average\n", *model.dwell);
  } else {
    fmt::print("independent observations\n");
  }
  fmt::print("prior {:g}, steady entry {:g}, {} samples\n\n", model.prior, model.steady, samples);
  fmt::print("{:<34}{:>12}{:>13}{:>12}\n", "quantity", "closed form", "Monte Carlo", "std. error");
  for (const RiskRow& row : rows) {
    const std::string closed = std::isnan(row.closed_form) ? "none"
                                                           : fmt::format("{:.6f}", row.closed_form);
    fmt::print("{:<34}{:>12}{:>13.6f}{:>12.2g}{}\n", row.quantity, closed, row.sampled.mean,
               row.sampled.standard_error, row.agrees(samples) ? "" : "  beyond 4 std. errors");
  }
}

int run(const Values& values) {
  const RiskModel model = read_model(values);
  const int64_t samples = count_of(values, "samples", 100000, 2, 100000000);
  const std::vector<RiskSample> sampled = simulate_risk(model, sizes_up_to(model.m), samples,
                                                        seed(values));
  const std::vector<RiskRow> rows = risk_rows(model, sampled.back());
  if (!has(values, "json")) {
    print_table(model, rows, samples);
    return kDone;
  }
  Json curves = Json::array();
  for (const RiskSample& sample : sampled)
    curves.push_back({{"m", sample.m}, {"rows", json_of(risk_rows(model, sample), samples)}});
  const Json document = {{"kvsim", "theory"},
                         {"parameters", json_of(model, samples)},
                         {"rows", json_of(rows, samples)},
                         {"windows", curves},
                         {"distribution", distribution(model, samples, seed(values))}};
  fmt::print("{}\n", document.dump(1));
  return kDone;
}

const bool registered = register_command(
    {.name = "theory",
     .summary = "compare mean, max and max with prior as estimates of a risk that is rarely seen",
     .description =
         "DefensiveKV's Appendix C: an entry's importance is low most of the time and high with a\n"
         "small probability; a window of observations estimates its true risk, c. Closed forms\n"
         "stand beside a simulation with its standard error. `outranks steady` is the probability\n"
         "that the estimate is above that of an entry of constant value. `kvsim plot` draws the\n"
         "document that --json prints.",
     .options = {{"m", "N", "observations, the size of the window (default: 32)"},
                 {"epsilon", "X", "probability that an observation is high (default: 0.05)"},
                 {"a", "X", "low observations are uniform on [0, a] (default: 0.1)"},
                 {"b", "X", "high ones on [b, c] (default: 0.5)"},
                 {"c", "X", "the true risk (default: 1)"},
                 {"prior", "X", "floor under the estimate of max with prior (default: 0.2)"},
                 {"steady", "X", "value of the entry to be outranked (default: 0.3)"},
                 {"samples", "N", "windows to draw (default: 100000)"},
                 {"dwell", "X",
                  "mean length of a high state, at least 1: observations are a Markov "
                  "chain (default: independent, as with dwell 1/(1 - epsilon))"},
                 {"seed"},
                 {"json"}},
     .examples = {"kvsim theory --m 64 --epsilon 0.02",
                  "kvsim theory --dwell 8 --json > theory.json"},
     .run = run});

}  // namespace
}  // namespace kvsim::cli::theory_command
