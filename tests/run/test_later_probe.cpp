// A probe's tokens in the place of the later ones (trace-format.md 7): measures against float64
// loops over the probe's own tensors.
#include <catch2/catch.hpp>
#include <cmath>

#include "tests/reference/reference.hpp"
#include "tests/support/study_case.hpp"

using namespace kvsim;
using namespace kvsim::test;

namespace {

constexpr int64_t kEntries = 40, kDraftTokens = 5;

/// What one probe token's head sees and puts out with some of the prompt's entries, in float64.
struct Seen {
  std::vector<double> weight;  ///< [n + t + 1]
  std::vector<double> output;  ///< z W^h [D]
};

double at(const Tensor& prompt, const Tensor& probe, int64_t a, int64_t i, int64_t x) {
  return static_cast<double>(i < kEntries ? element(prompt, a, i, x)
                                          : element(probe, a, i - kEntries, x));
}

template <class Kept>
Seen attend(const RandomTrace& trace, int head, int64_t token, const Kept& kept) {
  const LayerTrace& layer = trace.layer;
  const ProbeLayer& probe = layer.probes[1];
  const int64_t shared = head / trace.info.group_size();
  Seen seen;
  double sum = 0;
  for (int64_t i = 0; i <= kEntries + token; ++i) {
    double dot = 0;
    for (int64_t x = 0; x < trace.info.head_dim; ++x)
      dot += static_cast<double>(element(probe.q, head, token, x)) *
             at(layer.k, probe.k, shared, i, x);
    seen.weight.push_back(i >= kEntries || kept(i) ? std::exp(layer.scale * dot) : 0);
    sum += seen.weight.back();
  }
  std::vector<double> z(static_cast<size_t>(layer.value_dim()), 0.0);
  for (size_t i = 0; i < seen.weight.size(); ++i) {
    seen.weight[i] /= sum;
    for (size_t c = 0; c < z.size(); ++c)
      z[c] += seen.weight[i] *
              at(layer.v, probe.v, shared, static_cast<int64_t>(i), static_cast<int64_t>(c));
  }
  seen.output = reference::project(layer, head, z);
  return seen;
}

/// Of v_i W^h: the L1 norm.
double value_norm(const RandomTrace& trace, int head, int64_t entry) {
  return reference::l1(
      reference::project(trace.layer, head, reference::value(trace.layer, head, entry)));
}

}  // namespace

TEST_CASE("measures over a probe's tokens are those of the definition", "[run]") {
  const RandomTraceShape shape{.probe = true, .draft = true};
  // One chosen before, one for another probe, one for this one.
  const std::vector<std::string> records = {"snapkv,window=8", "snapkv,queries=probe,probe=repeat",
                                            "snapkv,queries=probe,probe=draft"};
  const StudyCase study(
      shape, {}, records,
      [](StudyOptions& options) {
    options.wo_steps = 0;
    options.budgets = {Budget::parse("0.2"), Budget::parse("0.5")};
      },
      "draft");
  const auto trace = random_trace(shape);
  REQUIRE(study.results().size("step") == kDraftTokens);
  CHECK(std::get<std::string>(*study.results().attribute("later")) == "draft");
  for (int64_t p = 0; p < 3; ++p)
    for (int64_t b = 0; b < 2; ++b)
      for (int64_t t = 0; t < kDraftTokens; ++t) {
        CAPTURE(records[static_cast<size_t>(p)], b, t);
        double held = 0, all = 0;
        std::vector<double> full(static_cast<size_t>(shape.hidden), 0.0), change = full;
        for (int h = 0; h < shape.query_heads; ++h) {
          const auto kept = [&](int64_t i) { return study.kept(p, b, h, i); };
          const Seen whole = attend(*trace, h, t, [](int64_t) { return true; });
          const Seen part = attend(*trace, h, t, kept);
          for (int64_t i = 0; i < kEntries; ++i) {
            const double importance = whole.weight[static_cast<size_t>(i)] *
                                      value_norm(*trace, h, i);
            all += importance;
            held += kept(i) ? importance : 0;
          }
          for (size_t k = 0; k < full.size(); ++k) {
            full[k] += whole.output[k];
            change[k] += part.output[k] - whole.output[k];
          }
        }
        CHECK(study.value("retained_importance", {p, b, 0, t}) == Approx(held / all).epsilon(1e-5));
        CHECK(study.value("output_error", {p, b, 0, t}) ==
              Approx(reference::l2(change) / reference::l2(full)).epsilon(1e-4));
      }
}

TEST_CASE("the answer of a probe observes nothing", "[run]") {
  const RandomTraceShape shape{.probe = true, .draft = true};
  const auto scores = [&](float answer) {
    const auto trace = random_trace(shape);
    for (int64_t x = 0; x < shape.d; ++x)
      for (int h = 0; h < shape.query_heads; ++h)
        set_element(trace->layer.probes[1].q, h, 4, x, answer * static_cast<float>(x));
    const TemporaryFolder folder;
    write_trace(folder / "t.h5", trace->info, {&trace->layer, 1});
    StudyOptions options = options_for({"snapkv,queries=probe,probe=draft"}, {"0.3"}, {0});
    options.save_keep = true;
    const Dataset results = study_of(TraceReader(folder / "t.h5"), options);
    const auto mask = results.row<uint8_t>("kept_mask", {0, 0, 0});
    return std::vector<uint8_t>(mask.begin(), mask.end());
  };
  CHECK(scores(1) == scores(-3));
}
