#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <numeric>

#include "sim/core/numbers.hpp"
#include "tests/reference/reference.hpp"
#include "tests/sim/backend/backends.hpp"
#include "tests/support/random_trace.hpp"

namespace kvsim::test {
namespace {

/// A replay kept whole: [Hq][T] and [Hq][T][dv]; outputs of other steps than `output_steps` are 0.
struct Replayed {
  std::vector<int64_t> output_steps;
  Table<double> prompt_attention, prompt_importance, later_attention, later_importance;
  std::vector<Table<double>> kept_attention, kept_importance;
  std::vector<float> z;
  std::vector<std::vector<float>> delta;
};

void copy_steps(const Table<double>& from, int64_t first, int64_t steps, Table<double>& to,
                int64_t heads, int64_t all) {
  if (to.empty()) to = Table<double>(heads, all);
  for (int64_t h = 0; h < heads; ++h)
    for (int64_t s = 0; s < steps; ++s) to(h, first + s) = from(h, s);
}

void copy_outputs(const std::vector<float>& from, const std::vector<int64_t>& steps, int64_t dv,
                  std::vector<float>& to, int64_t heads, int64_t all) {
  if (from.empty()) return;
  to.resize(static_cast<size_t>(heads * all * dv));
  auto next = from.begin();
  for (int64_t h = 0; h < heads; ++h)
    for (const int64_t step : steps)
      for (int64_t c = 0; c < dv; ++c) to[static_cast<size_t>((h * all + step) * dv + c)] = *next++;
  REQUIRE(next == from.end());
}

Replayed replay(Backend& backend, const LayerTrace& layer, const ReplayRequest& request) {
  Replayed all;
  const int64_t heads = layer.info->num_query_heads, steps = layer.info->steps();
  int64_t next = 0;
  backend.replay(layer, request, [&](const ReplayBlock& block) {
    REQUIRE(block.first_step == next);
    next += block.steps;
    const int64_t first = block.first_step, count = block.steps;
    copy_steps(block.prompt_attention, first, count, all.prompt_attention, heads, steps);
    copy_steps(block.prompt_importance, first, count, all.prompt_importance, heads, steps);
    copy_steps(block.later_attention, first, count, all.later_attention, heads, steps);
    copy_steps(block.later_importance, first, count, all.later_importance, heads, steps);
    all.kept_attention.resize(block.kept_attention.size());
    all.kept_importance.resize(block.kept_attention.size());
    all.delta.resize(block.kept_attention.size());
    const int64_t dv = layer.value_dim();
    const std::vector<int64_t>& outputs = block.output_steps;
    all.output_steps.insert(all.output_steps.end(), outputs.begin(), outputs.end());
    copy_outputs(block.z, outputs, dv, all.z, heads, steps);
    for (size_t set = 0; set < all.delta.size(); ++set) {
      copy_steps(block.kept_attention[set], first, count, all.kept_attention[set], heads, steps);
      copy_steps(block.kept_importance[set], first, count, all.kept_importance[set], heads, steps);
      std::vector<float> delta(block.delta[set] != nullptr ? block.z.size() : 0);
      if (!delta.empty())
        backend.read_outputs(block.delta[set], static_cast<int64_t>(delta.size()), delta.data());
      copy_outputs(delta, outputs, dv, all.delta[set], heads, steps);
    }
  });
  REQUIRE(next == steps);
  REQUIRE((request.output_steps ? std::ranges::includes(all.output_steps, *request.output_steps)
                                : static_cast<int64_t>(all.output_steps.size()) == steps));
  return all;
}

/// A random order of the entries, kept up to the ends of `fractions` of n, per owner.
ReplayPlan random_plan(const LayerTrace& layer, bool per_query_head, uint64_t seed,
                       const std::vector<double>& fractions) {
  ReplayPlan plan;
  plan.per_query_head = per_query_head;
  const int64_t n = layer.info->prompt_len;
  const int owners = per_query_head ? layer.info->num_query_heads : layer.info->num_kv_heads;
  for (int owner = 0; owner < owners; ++owner) {
    KeptChain chain;
    for (int64_t i = 0; i < n; ++i) chain.order.push_back(static_cast<uint32_t>(i));
    for (size_t i = chain.order.size(); i > 1; --i) {
      const double u = uniform(seed, static_cast<uint64_t>(owner), i, 3);
      std::swap(chain.order[i - 1], chain.order[static_cast<size_t>(u * static_cast<double>(i))]);
    }
    // Owners differ in what they keep, as ragged budgets do.
    for (const double f : fractions)
      chain.end.push_back(std::min<int64_t>(
          n, static_cast<int64_t>(f * static_cast<double>(n)) + (f > 0 && f < 1 ? owner : 0)));
    plan.owners.push_back(chain);
  }
  return plan;
}

std::vector<float> random_importance(const TraceInfo& info, int64_t columns) {
  std::vector<float> weights;
  for (int64_t i = 0; i < info.num_query_heads * columns; ++i)
    weights.push_back(static_cast<float>(std::fabs(normal(7, 7, static_cast<uint64_t>(i)))));
  return weights;
}

/// One row of the replay as float64 has it.
struct ExpectedRow {
  double prompt_attention = 0, prompt_importance = 0, later_attention = 0, later_importance = 0;
  std::vector<double> z;
  struct Set {
    double attention = 0, importance = 0;
    std::vector<double> z;  ///< empty when the plan wants masses only
    bool everything = false;
  };
  std::vector<Set> sets;
};

/// A whole replay by the reference, [Hq][T] rows: made once, compared with every backend.
class Expected {
 public:
  Expected(const LayerTrace& layer, const ReplayRequest& request)
      : layer_(layer), request_(request) {
    for (int h = 0; h < layer.info->num_query_heads; ++h)
      for (int64_t s = 0; s < layer.info->steps(); ++s) rows_.push_back(row(h, s));
  }
  const ExpectedRow& at(int head, int64_t step) const {
    return rows_[static_cast<size_t>(head * layer_.info->steps() + step)];
  }

 private:
  ExpectedRow row(int head, int64_t step) const {
    const std::vector<double> logits = reference::logits(layer_, head,
                                                         layer_.info->first_step() + step);
    const reference::Attention full = reference::attention(layer_, head, logits);
    const auto n = layer_.info->prompt_len;
    std::vector<bool> prompt(logits.size(), false), later(logits.size(), true);
    std::fill_n(prompt.begin(), n, true);
    std::fill_n(later.begin(), n, false);
    const float* const w = request_.importance != nullptr
                               ? request_.importance + head * request_.importance_columns
                               : nullptr;
    ExpectedRow result;
    result.prompt_attention = sum(full.weight, prompt, nullptr);
    result.later_attention = sum(full.weight, later, nullptr);
    if (w != nullptr) result.prompt_importance = sum(full.weight, prompt, w);
    if (request_.later_importance) result.later_importance = sum(full.weight, later, w);
    result.z = reference::output(layer_, head, full.weight);
    for (const ReplayPlan& plan : request_.plans) {
      const KeptChain& chain = plan.owners[static_cast<size_t>(
          plan.per_query_head ? head : head / layer_.info->group_size())];
      for (const int64_t end : chain.end) {
        std::vector<bool> kept(logits.size(), false), present = later;
        for (int64_t i = 0; i < end; ++i) {
          kept[chain.order[static_cast<size_t>(i)]] = true;
          present[chain.order[static_cast<size_t>(i)]] = true;
        }
        ExpectedRow::Set set;
        set.everything = end == n;
        set.attention = sum(full.weight, kept, nullptr);
        if (w != nullptr) set.importance = sum(full.weight, kept, w);
        if (!plan.masses_only)
          set.z = reference::output(layer_, head,
                                    reference::attention(layer_, head, logits, present).weight);
        result.sets.push_back(set);
      }
    }
    return result;
  }

  static double sum(const std::vector<double>& weight, const std::vector<bool>& in,
                    const float* importance) {
    double result = 0;
    for (size_t i = 0; i < weight.size(); ++i)
      if (in[i] && weight[i] > 0)
        result += weight[i] * (importance != nullptr ? static_cast<double>(importance[i]) : 1.0);
    return result;
  }

  const LayerTrace& layer_;
  const ReplayRequest& request_;
  std::vector<ExpectedRow> rows_;
};

/// Largest errors of a replay against the reference.
struct Errors {
  double output = 0;  ///< relative L2 of z and of z + delta, per row
  double mass = 0;    ///< relative, where the fraction is above 1e-20
};

class Judge {
 public:
  explicit Judge(const Replayed& replayed) : got_(replayed) {}

  void row(const ExpectedRow& want, int64_t head, int64_t step) {
    mass(got_.prompt_attention(head, step), want.prompt_attention);
    mass(got_.prompt_importance(head, step), want.prompt_importance);
    mass(got_.later_attention(head, step), want.later_attention);
    mass(got_.later_importance(head, step), want.later_importance);
    const bool outputs = std::ranges::binary_search(got_.output_steps, step);
    if (outputs) output(head, step, nullptr, want.z, want.z);
    REQUIRE(got_.delta.size() == want.sets.size());
    for (size_t i = 0; i < want.sets.size(); ++i) {
      const ExpectedRow::Set& set = want.sets[i];
      mass(got_.kept_attention[i](head, step), set.attention);
      mass(got_.kept_importance[i](head, step), set.importance);
      if (set.z.empty()) {
        CHECK(got_.delta[i].empty());
        continue;
      }
      if (outputs) output(head, step, &got_.delta[i], set.z, want.z);
      if (!set.everything) continue;
      CHECK(got_.kept_attention[i](head, step) == got_.prompt_attention(head, step));
      CHECK(got_.kept_importance[i](head, step) == got_.prompt_importance(head, step));
      if (!outputs) continue;
      const auto delta = got_.delta[i].begin() + first(head, step, want.z.size());
      CHECK(std::all_of(delta, delta + static_cast<int64_t>(want.z.size()),
                        [](float x) { return x == 0.0f; }));
    }
  }
  Errors errors() const { return errors_; }

 private:
  int64_t first(int64_t head, int64_t step, size_t dv) const {
    return (head * got_.prompt_attention.columns() + step) * static_cast<int64_t>(dv);
  }

  void output(int64_t head, int64_t step, const std::vector<float>* delta,
              const std::vector<double>& expected, const std::vector<double>& z) {
    std::vector<double> difference;
    const size_t at = static_cast<size_t>(first(head, step, z.size()));
    for (size_t c = 0; c < expected.size(); ++c) {
      const double got = delta == nullptr ? static_cast<double>(got_.z[at + c])
                                          : static_cast<double>((*delta)[at + c]) + z[c];
      difference.push_back(got - expected[c]);
    }
    // z and z + delta are float32 sums of terms as large as both.
    const double size = std::max(reference::l2(expected), reference::l2(z));
    errors_.output = std::max(errors_.output, reference::l2(difference) / size);
  }

  void mass(double got, double expected) {
    if (expected < 1e-20) {
      if (std::fabs(got - expected) > 1e-25) errors_.mass = 1;
      return;
    }
    errors_.mass = std::max(errors_.mass, std::fabs(got / expected - 1));
  }

  const Replayed& got_;
  Errors errors_;
};

void check(Backend& backend, const LayerTrace& layer, const ReplayRequest& request,
           const Expected& expected) {
  const Replayed replayed = replay(backend, layer, request);
  Judge judge(replayed);
  for (int h = 0; h < layer.info->num_query_heads; ++h)
    for (int64_t s = 0; s < layer.info->steps(); ++s) judge.row(expected.at(h, s), h, s);
  CHECK(judge.errors().output < output_tolerance(backend, layer));
  CHECK(judge.errors().mass < kMassTolerance);
}

void check_all_backends(const LayerTrace& layer, const ReplayRequest& request,
                        const Expected& expected, const std::vector<int64_t>& chunks) {
  ReplayRequest chunked = request;
  for (auto& [name, backend] : all_backends())
    for (const int64_t chunk : chunks) {
      CAPTURE(name, chunk);
      chunked.chunk = chunk;
      check(*backend, layer, chunked, expected);
    }
}

void check_all_backends(const LayerTrace& layer, const ReplayRequest& request,
                        const std::vector<int64_t>& chunks = {0}) {
  check_all_backends(layer, request, Expected(layer, request), chunks);
}

/// Plans of every kind over one layer.
ReplayRequest usual_request(const LayerTrace& layer) {
  ReplayRequest request;
  request.plans.push_back(random_plan(layer, false, 1, {0.0, 0.1, 0.3, 0.3, 0.8, 1.0}));
  request.plans.push_back(random_plan(layer, true, 2, {0.2, 0.5}));
  request.plans.push_back(random_plan(layer, false, 3, {0.25, 1.0}));
  request.plans.back().masses_only = true;
  request.plans.push_back(random_plan(layer, true, 4, {0.5}));
  request.plans.back().masses_only = true;
  return request;
}

}  // namespace

TEST_CASE("the replay agrees with float64 for every shape of heads", "[backend][replay]") {
  struct Case {
    int query_heads, kv_heads;
    int64_t d, dv, prompt, later;
  };
  const std::vector<Case> cases = {
      {1, 1, 64, 64, 33, 5},   {4, 2, 10, 10, 100, 7},   {6, 2, 80, 80, 65, 40},
      {8, 1, 96, 32, 77, 13},  {7, 1, 7, 80, 50, 17},    {16, 1, 128, 128, 130, 9},
      {16, 16, 16, 16, 20, 3}, {12, 4, 256, 24, 40, 35}, {2, 2, 128, 64, 300, 120},
      {5, 5, 1, 1, 9, 1},      {100, 1, 8, 8, 30, 2},    {4, 4, 32, 48, 1, 6}};
  const ElementType types[] = {ElementType::float32, ElementType::bfloat16, ElementType::float16};
  for (size_t i = 0; i < 3 * cases.size(); ++i) {
    const Case& c = cases[i / 3];
    const ElementType type = types[i % 3];
    // A single column may cancel, and then a share of it says nothing of scores in two terms.
    if (type == ElementType::float16 && c.dv == 1) continue;
    CAPTURE(c.query_heads, c.kv_heads, c.d, c.dv, c.prompt, c.later, element_name(type));
    const auto trace = random_trace({.query_heads = c.query_heads,
                                     .kv_heads = c.kv_heads,
                                     .d = c.d,
                                     .dv = c.dv,
                                     .prompt = c.prompt,
                                     .later = c.later,
                                     .type = type});
    ReplayRequest request = usual_request(trace->layer);
    const std::vector<float> weights = random_importance(trace->info, trace->info.prompt_len);
    request.importance = weights.data();
    request.importance_columns = trace->info.prompt_len;
    check_all_backends(trace->layer, request);
  }
}

TEST_CASE("outputs may be wanted at some steps only, sums always come", "[backend][replay]") {
  const auto trace = random_trace({.query_heads = 6, .kv_heads = 2, .prompt = 150, .later = 130});
  ReplayRequest request = usual_request(trace->layer);
  const std::vector<float> weights = random_importance(trace->info, trace->info.prompt_len);
  request.importance = weights.data();
  request.importance_columns = trace->info.prompt_len;
  std::vector<int64_t> spaced, clustered(70);
  for (int64_t step = 1; step < 130; step += 3) spaced.push_back(step);
  std::iota(clustered.begin(), clustered.end(), int64_t{20});
  const Expected expected(trace->layer, request);
  for (const auto& steps : {std::vector<int64_t>{}, {0}, {129}, spaced, clustered}) {
    CAPTURE(steps);
    request.output_steps = steps;
    check_all_backends(trace->layer, request, expected, {0, 64});
  }
}

TEST_CASE("the size of the key chunks changes no more than rounding", "[backend][replay]") {
  RandomTraceShape shape{.prompt = 150, .later = 20, .logit_spread = 4};
  for (const ElementType type : {ElementType::float32, ElementType::bfloat16}) {
    shape.type = type;
    const auto trace = random_trace(shape);
    check_all_backends(trace->layer, usual_request(trace->layer), {1, 7, 64, 149, 150, 1000, 0});
  }
}

TEST_CASE("softcap, attention sinks and both at once enter the replay", "[backend][replay]") {
  for (const double softcap : {0.0, 2.0, 50.0})
    for (const bool sink : {false, true}) {
      CAPTURE(softcap, sink);
      RandomTraceShape shape;
      shape.type = softcap == 0 ? ElementType::float32
                   : sink       ? ElementType::bfloat16
                                : ElementType::float16;
      shape.softcap = softcap;
      shape.sink = sink;
      shape.logit_spread = 3;
      const auto trace = random_trace(shape);
      ReplayRequest request = usual_request(trace->layer);
      const std::vector<float> weights = random_importance(trace->info, trace->info.total_len);
      request.importance = weights.data();
      request.importance_columns = trace->info.total_len;
      request.later_importance = true;
      check_all_backends(trace->layer, request);
    }
}

TEST_CASE("later steps may be stored with gaps", "[backend][replay]") {
  RandomTraceShape shape;
  shape.queries = {3, 39, 40, 44, 47, 48};
  const auto trace = random_trace(shape);
  check_all_backends(trace->layer, usual_request(trace->layer));
}

TEST_CASE("attention that sits on one dropped entry leaves the rest accurate",
          "[backend][replay]") {
  // One key has a logit 150 above all others: without a maximum of their own, the scores of
  // everything else would vanish in float32. Integers make the logits exact.
  RandomTraceShape shape{.prompt = 60, .integers = true};
  for (const int64_t heavy : {0, 31, 59})
    for (const bool sink : {false, true}) {
      CAPTURE(heavy, sink);
      shape.sink = sink;
      const auto trace = random_trace(shape);
      LayerTrace& layer = trace->layer;
      for (int h = 0; h < shape.query_heads; ++h)
        for (size_t row = 0; row < trace->info.query_position.size(); ++row)
          set_element(layer.q, h, static_cast<int64_t>(row), 0, 4);
      for (int h = 0; h < shape.kv_heads; ++h) {
        for (int64_t i = 0; i < trace->info.total_len; ++i) set_element(layer.k, h, i, 0, 0);
        set_element(layer.k, h, heavy, 0, 150);
      }
      ReplayRequest request = usual_request(layer);
      const std::vector<float> weights = random_importance(trace->info, trace->info.prompt_len);
      request.importance = weights.data();
      request.importance_columns = trace->info.prompt_len;
      check_all_backends(layer, request, {0, 16});
    }
}

TEST_CASE("a kept set may hang on the sink alone", "[backend][replay]") {
  // The sink is far above every logit: outputs are tiny, and no fraction is NaN.
  const auto trace = random_trace({});
  trace->layer.attention_sink.assign(4, 60.0f);
  check_all_backends(trace->layer, usual_request(trace->layer));
}

TEST_CASE("tiny and equal logits give plain averages", "[backend][replay]") {
  for (const double spread : {0.0, 1e-30}) {
    CAPTURE(spread);
    RandomTraceShape shape;
    shape.logit_spread = spread;
    const auto trace = random_trace(shape);
    check_all_backends(trace->layer, usual_request(trace->layer));
  }
}

TEST_CASE("large logits lose no more than their float32 dot products do", "[backend][replay]") {
  // Integers: logits up to several hundred, all exact.
  for (const ElementType type : {ElementType::float32, ElementType::bfloat16}) {
    CAPTURE(element_name(type));
    const auto trace = random_trace({.d = 64, .type = type, .integers = true});
    trace->layer.scale = 8;
    check_all_backends(trace->layer, usual_request(trace->layer), {0, 5});
  }
}

TEST_CASE("a kept set's result does not depend on the plans beside it", "[backend][replay]") {
  const auto trace = random_trace({.prompt = 90, .later = 30});
  const auto backend = make_cpu_backend();
  const ReplayRequest all = usual_request(trace->layer);
  const Replayed together = replay(*backend, trace->layer, all);
  size_t set = 0;
  for (const ReplayPlan& plan : all.plans) {
    ReplayRequest one;
    one.plans = {plan};
    const Replayed alone = replay(*backend, trace->layer, one);
    CHECK(alone.z == together.z);
    for (size_t b = 0; b < alone.delta.size(); ++b, ++set) {
      CHECK(alone.delta[b] == together.delta[set]);
      CHECK(alone.kept_attention[b].values() == together.kept_attention[set].values());
    }
  }
}

TEST_CASE("a replay gives the same bytes on 1, 2 and 8 threads", "[backend][replay]") {
  const auto trace = random_trace({.query_heads = 6, .kv_heads = 3, .prompt = 200, .later = 150});
  const ReplayRequest request = usual_request(trace->layer);
  for (auto& [name, backend] : all_backends()) {
    CAPTURE(name);
    std::vector<Replayed> results;
    for (const int count : {1, 2, 8}) {
      const ForcedThreads forced(count);
      results.push_back(replay(*backend, trace->layer, request));
    }
    for (const Replayed& other : results) {
      CHECK(other.z == results[0].z);
      CHECK(other.delta == results[0].delta);
      CHECK(other.prompt_attention.values() == results[0].prompt_attention.values());
      for (size_t set = 0; set < other.kept_attention.size(); ++set)
        CHECK(other.kept_attention[set].values() == results[0].kept_attention[set].values());
    }
  }
}

TEST_CASE("a replay without plans still tells the full cache's outputs", "[backend][replay]") {
  const auto trace = random_trace({});
  check_all_backends(trace->layer, {});
}

}  // namespace kvsim::test
