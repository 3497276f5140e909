#include <catch2/catch.hpp>
#include <cmath>

#include "tests/reference/reference.hpp"
#include "tests/sim/backend/backends.hpp"
#include "tests/support/random_trace.hpp"

namespace kvsim::test {
namespace {

// Norms are long sums of float32 products of both signs, rounded to float32 at the end.
constexpr double kNormTolerance = 3e-6;

struct Case {
  int query_heads, kv_heads;
  int64_t dv, hidden, prompt;
  ElementType type;
};

const std::vector<Case> kCases = {{4, 2, 16, 24, 40, ElementType::float32},
                                  {1, 1, 10, 7, 5, ElementType::float32},  // W^h of low rank
                                  {6, 3, 80, 700, 110, ElementType::float16},
                                  {3, 1, 128, 600, 800, ElementType::bfloat16},
                                  {2, 1, 6, 5, 100, ElementType::bfloat16},
                                  {2, 2, 9, 30, 20, ElementType::bfloat16},  // no pairs
                                  {8, 1, 64, 513, 97, ElementType::float32},
                                  {2, 2, 256, 300, 3, ElementType::float16}};

std::unique_ptr<RandomTrace> make(const Case& c) {
  return random_trace({.query_heads = c.query_heads,
                       .kv_heads = c.kv_heads,
                       .dv = c.dv,
                       .hidden = c.hidden,
                       .prompt = c.prompt,
                       .type = c.type});
}

/// x[Hq][steps][dv]
std::vector<float> random_rows(const TraceInfo& info, int64_t steps, int64_t dv, uint64_t seed) {
  std::vector<float> x;
  for (int64_t i = 0; i < info.num_query_heads * steps * dv; ++i)
    x.push_back(static_cast<float>(normal(seed, 11, static_cast<uint64_t>(i))));
  return x;
}

std::vector<double> row(const std::vector<float>& x, int64_t index, int64_t dv) {
  return {x.begin() + index * dv, x.begin() + (index + 1) * dv};
}

}  // namespace

TEST_CASE("norms of values agree with float64", "[backend][norms]") {
  for (auto& [name, backend] : all_backends())
    for (const Case& c : kCases) {
      CAPTURE(name, c.dv, c.prompt);
      const auto trace = make(c);
      const Range entries{1, c.prompt};
      std::vector<float> l1(static_cast<size_t>(c.kv_heads * entries.size())), l2(l1.size());
      backend->value_norms(trace->layer, Norm::l1, entries, l1.data());
      backend->value_norms(trace->layer, Norm::l2, entries, l2.data());
      const int group = trace->info.group_size();
      for (int h = 0; h < c.kv_heads; ++h)
        for (int64_t i = 0; i < entries.size(); ++i) {
          const std::vector<double> v = reference::value(trace->layer, h * group,
                                                         entries.begin + i);
          const size_t at = static_cast<size_t>(h * entries.size() + i);
          CHECK(static_cast<double>(l1[at]) == Approx(reference::l1(v)).epsilon(kNormTolerance));
          CHECK(static_cast<double>(l2[at]) == Approx(reference::l2(v)).epsilon(kNormTolerance));
        }
    }
}

TEST_CASE("norms of projected values agree with float64", "[backend][norms]") {
  const auto backends = all_backends();
  for (const Case& c : kCases) {
    CAPTURE(c.dv, c.prompt);
    const auto trace = make(c);
    const Range entries{0, c.prompt};
    struct Want {
      size_t at;
      double l1, l2;
    };
    std::vector<Want> wanted;
    for (int h = 0; h < c.query_heads; ++h)
      for (int64_t i = 0; i < entries.size(); i += 1 + entries.size() / 15) {
        const std::vector<double> y = reference::project(trace->layer, h,
                                                         reference::value(trace->layer, h, i));
        wanted.push_back(
            {static_cast<size_t>(h * entries.size() + i), reference::l1(y), reference::l2(y)});
      }
    for (auto& [name, backend] : backends) {
      CAPTURE(name);
      std::vector<float> l1(static_cast<size_t>(c.query_heads * entries.size())), l2(l1.size());
      backend->projected_norms(trace->layer, Norm::l1, entries, l1.data());
      backend->projected_norms(trace->layer, Norm::l2, entries, l2.data());
      double worst = 0;
      for (const Want& want : wanted) {
        worst = std::max(worst, std::fabs(static_cast<double>(l1[want.at]) / want.l1 - 1));
        worst = std::max(worst, std::fabs(static_cast<double>(l2[want.at]) / want.l2 - 1));
      }
      CHECK(worst < kNormTolerance);
    }
  }
}

TEST_CASE("a backend projects the outputs of its replay where they are", "[backend][norms]") {
  const auto trace = make(kCases[0]);
  const int64_t heads = trace->info.num_query_heads, dv = trace->layer.value_dim();
  ReplayRequest request;
  ReplayPlan plan;
  plan.owners.assign(static_cast<size_t>(trace->info.num_kv_heads), {{3, 0, 7, 1}, {1, 2, 4}});
  request.plans = {plan};
  for (auto& [name, backend] : all_backends()) {
    CAPTURE(name);
    const auto projection = backend->projection(trace->layer);
    backend->replay(trace->layer, request, [&](const ReplayBlock& block) {
      // Deltas, the output and copies of the deltas, so that both kinds of memory alternate.
      const int64_t count = heads * block.steps * dv;
      std::vector<std::vector<float>> copies;
      std::vector<const float*> x;
      for (const float* delta : block.delta) {
        copies.emplace_back(static_cast<size_t>(count));
        backend->read_outputs(delta, count, copies.back().data());
        x.insert(x.end(), {delta, block.z.data(), copies.back().data()});
      }
      std::vector<int64_t> steps;
      for (int64_t s = 0; s < block.steps; s += 2) steps.push_back(s);
      std::vector<double> norms(x.size() * steps.size());
      std::vector<double> head_norms(x.size() * static_cast<size_t>(heads * block.steps));
      projection->norms(x, block.steps, steps, norms.data());
      projection->head_norms(x, block.steps, head_norms.data());
      const auto same = [](const std::vector<double>& all, size_t a, size_t b, size_t size) {
        const auto from = [&](size_t i) { return all.begin() + static_cast<int64_t>(i * size); };
        return std::equal(from(a), from(a + 1), from(b));
      };
      for (size_t set = 0; set < block.delta.size(); ++set) {
        CHECK(*std::max_element(copies[set].begin(), copies[set].end()) > 0);
        CHECK(same(norms, 3 * set, 3 * set + 2, steps.size()));
        CHECK(same(head_norms, 3 * set, 3 * set + 2, static_cast<size_t>(heads * block.steps)));
      }
    });
  }
}

TEST_CASE("norms after the output projection agree with float64", "[backend][norms]") {
  const auto backends = all_backends();
  for (const Case& c : kCases) {
    CAPTURE(c.dv, c.hidden);
    const auto trace = make(c);
    const int64_t stride = 7;
    const std::vector<float> x = random_rows(trace->info, stride, c.dv, 1);
    const std::vector<float> y = random_rows(trace->info, stride, c.dv, 2);
    const std::vector<const float*> both = {x.data(), y.data()};
    const std::vector<int64_t> steps = {0, 2, 6};
    std::vector<double> wanted(both.size() * steps.size());
    std::vector<double> wanted_heads(both.size() * static_cast<size_t>(c.query_heads * stride));
    for (size_t b = 0; b < 2; ++b)
      for (int64_t s = 0; s < stride; ++s) {
        std::vector<double> layer(static_cast<size_t>(c.hidden), 0.0);
        for (int h = 0; h < c.query_heads; ++h) {
          const int64_t index = h * stride + s;
          const std::vector<double> p = reference::project(trace->layer, h,
                                                           row(b == 0 ? x : y, index, c.dv));
          for (size_t i = 0; i < p.size(); ++i) layer[i] += p[i];
          wanted_heads[b * static_cast<size_t>(c.query_heads * stride) +
                       static_cast<size_t>(index)] = reference::l2(p);
        }
        for (size_t k = 0; k < steps.size(); ++k)
          if (steps[k] == s) wanted[b * steps.size() + k] = reference::l2(layer);
      }
    for (auto& [name, backend] : backends) {
      CAPTURE(name);
      std::vector<double> norms(wanted.size()), head_norms(wanted_heads.size());
      const auto projection = backend->projection(trace->layer);
      projection->norms(both, stride, steps, norms.data());
      projection->head_norms(both, stride, head_norms.data());
      for (size_t i = 0; i < wanted.size(); ++i)
        CHECK(norms[i] == Approx(wanted[i]).epsilon(kNormTolerance));
      for (size_t i = 0; i < wanted_heads.size(); ++i)
        CHECK(head_norms[i] == Approx(wanted_heads[i]).epsilon(kNormTolerance));
    }
  }
}

TEST_CASE("projections of zero are exactly zero", "[backend][norms]") {
  for (auto& [name, backend] : all_backends()) {
    CAPTURE(name);
    const auto trace = make(kCases[0]);
    const std::vector<float> x(static_cast<size_t>(4 * 3 * 16), 0.0f);
    const std::vector<int64_t> steps = {0, 1, 2};
    std::vector<double> norms(3, -1.0), head_norms(12, -1.0);
    const std::vector<const float*> one = {x.data()};
    const auto projection = backend->projection(trace->layer);
    projection->norms(one, 3, steps, norms.data());
    projection->head_norms(one, 3, head_norms.data());
    for (const double value : norms) CHECK(value == 0.0);
    for (const double value : head_norms) CHECK(value == 0.0);
  }
}

TEST_CASE("norms give the same bytes on 1, 2 and 8 threads", "[backend][norms]") {
  const auto trace = make(kCases[3]);
  const std::vector<float> x = random_rows(trace->info, 5, 128, 1);
  const std::vector<int64_t> steps = {0, 1, 4};
  const auto backend = make_cpu_backend();
  std::vector<std::vector<float>> projected;
  std::vector<std::vector<double>> norms;
  for (const int count : {1, 2, 8}) {
    const ForcedThreads forced(count);
    projected.emplace_back(3 * 800);
    norms.emplace_back(3);
    backend->projected_norms(trace->layer, Norm::l1, {0, 800}, projected.back().data());
    const std::vector<const float*> one = {x.data()};
    backend->projection(trace->layer)->norms(one, 5, steps, norms.back().data());
  }
  CHECK(projected[1] == projected[0]);
  CHECK(projected[2] == projected[0]);
  CHECK(norms[1] == norms[0]);
  CHECK(norms[2] == norms[0]);
}

}  // namespace kvsim::test
