// Merged prompts and periodic compression against plain float64 sums.
#include <catch2/catch.hpp>
#include <cmath>

#include "sim/replay/compression.hpp"
#include "sim/replay/layer_replay.hpp"
#include "sim/stages/merge/merge.hpp"
#include "tests/reference/reference.hpp"
#include "tests/reference/replay.hpp"
#include "tests/support/random_run.hpp"

using namespace kvsim;
using namespace kvsim::test;

namespace {

/// A trace whose neighbours have similar keys, so that merges happen.
std::unique_ptr<RandomRun> similar_run(int query_heads) {
  const RandomTraceShape shape{.query_heads = query_heads, .prompt = 32, .later = 10};
  auto run = random_run(shape, {0}, 1);
  Tensor& k = run->layers[0].k;
  for (int64_t kv = 0; kv < 2; ++kv)
    for (int64_t i = 1; i < shape.prompt; i += 2)
      for (int64_t c = 0; c < shape.d; ++c)
        set_element(k, kv, i, c, element(k, kv, i - 1, c) + 0.2f * element(k, kv, i, c));
  return run;
}

/// One head at one step, from the slots themselves.
struct Naive {
  double sag = 0;
  double defect_sum = 0;
  int slots = 0;
  std::vector<double> output;
};

Naive naive_head(const LayerTrace& layer, const SlotCache& cache, const Settings& settings,
                 int head, int64_t row) {
  const TraceInfo& info = *layer.info;
  const auto logits = reference::logits(layer, head, row);
  const auto full = reference::attention(layer, head, logits);
  const int64_t t = info.query_position[static_cast<size_t>(row)];
  std::vector<double> weight;
  std::vector<std::vector<double>> values;
  double sum = 0;
  for (int64_t s = 0; s < cache.size(); ++s) {
    double product = 0;
    for (int64_t c = 0; c < cache.key_dim(); ++c)
      product += static_cast<double>(element(layer.q, head, row, c)) *
                 static_cast<double>(cache.key(s)[static_cast<size_t>(c)]);
    const double logit = layer.scale * product +
                         votes_of(settings).log_weight(cache, s, head - cache.first_head());
    weight.push_back(std::exp(logit));
    values.emplace_back(cache.value(s).begin(), cache.value(s).end());
  }
  for (int64_t i = info.prompt_len; i <= t; ++i) {
    weight.push_back(std::exp(logits[static_cast<size_t>(i)]));
    values.push_back(reference::value(layer, head, i));
  }
  for (const double w : weight) sum += w;
  Naive naive;
  naive.output.assign(static_cast<size_t>(cache.value_dim()), 0.0);
  for (size_t s = 0; s < weight.size(); ++s)
    for (size_t c = 0; c < naive.output.size(); ++c)
      naive.output[c] += weight[s] / sum * values[s][c];
  for (int64_t s = 0; s < cache.size(); ++s) {
    if (cache.members(s).empty()) continue;
    double members = 0, mass = 0;
    for (const uint32_t i : cache.members(s)) {
      members += full.weight[i];
      mass += std::exp(logits[i]);
    }
    naive.sag += members - weight[static_cast<size_t>(s)] / sum;
    naive.defect_sum += std::log(weight[static_cast<size_t>(s)] / mass);
    ++naive.slots;
  }
  return naive;
}

}  // namespace

TEST_CASE("A merged prompt replays like its slots, and its measures are plain sums", "[merge]") {
  for (const char* text : {"keepkv", "keepkv:bias", "convex", "d2o",
                           "snapkv,window=4,merge=convex,"
                           "votes=count",
                           "kvmerger"}) {
    INFO(text);
    const auto run = similar_run(4);
    const std::vector<LayerKept> kept = kept_of(*run, {text}, {"14"});
    const std::vector<Record> records = {Record::parse(text)};
    const Settings& settings = records[0].settings;
    const auto backend = make_cpu_backend();
    LayerWork work(run->layers[0], *backend);
    MergeMemory memory;
    FirstEstimates estimates;
    const Compressed slots = compress(work, *kept[0][0][0], settings, 0, memory, estimates);
    REQUIRE(merged_slots(slots.owners) > 0);

    PrefillReplay replay(work, kept[0], records, {});
    replay.run([&](const StepBlock& block) {
      for (const OutcomeBlock& view : block.outcomes) {
        REQUIRE(view.merges != nullptr);
        for (int64_t step = 0; step < block.steps; ++step) {
          double sag = 0, defect = 0;
          int count = 0;
          for (int head = 0; head < 4; ++head) {
            const int64_t row = run->info.first_step() + step;
            const SlotCache& cache = slots.owners[static_cast<size_t>(head / 2)];
            const Naive naive = naive_head(run->layers[0], cache, settings, head, row);
            const auto full = reference::attention(run->layers[0], head,
                                                   reference::logits(run->layers[0], head, row));
            const auto z = reference::output(run->layers[0], head, full.weight);
            const float* delta = view.delta +
                                 (head * block.steps + step) * static_cast<int64_t>(z.size());
            for (size_t c = 0; c < z.size(); ++c)
              CHECK(static_cast<double>(delta[c]) == Approx(naive.output[c] - z[c]).margin(1e-4));
            sag += naive.sag / 4;
            defect += naive.defect_sum;
            count += naive.slots;
          }
          CHECK(view.merges->mean(&MergeSums::sag, step) == Approx(sag).margin(1e-5));
          CHECK(view.merges->slot_mean(&MergeSums::defect, step) ==
                Approx(defect / count).margin(1e-4));
        }
      }
    });
    CHECK(replay.outcomes()[0].merge_count == merged_slots(slots.owners));
  }
}

TEST_CASE("With one head per KV head keepkv:bias changes no mass at the merge query", "[merge]") {
  // The first later query is made equal to the newest prompt query; estimates are its own scores.
  auto run = similar_run(2);
  LayerTrace& layer = run->layers[0];
  const int64_t n = run->info.prompt_len;
  for (int head = 0; head < 2; ++head)
    for (int64_t c = 0; c < run->info.head_dim; ++c)
      set_element(layer.q, head, n, c, element(layer.q, head, n - 1, c));
  const std::string text = "keepkv:bias,score_estimate=last";
  const std::vector<LayerKept> kept = kept_of(*run, {text}, {"14"});
  const std::vector<Record> records = {Record::parse(text)};
  const auto backend = make_cpu_backend();
  LayerWork work(layer, *backend);
  PrefillReplay replay(work, kept[0], records, {});
  replay.run([&](const StepBlock& block) {
    for (const OutcomeBlock& view : block.outcomes) {
      REQUIRE(view.merges != nullptr);
      CHECK(view.merges->slot_mean(&MergeSums::defect, 0) == Approx(0).margin(1e-5));
      for (int64_t step = 1; step < block.steps; ++step)
        CHECK(view.merges->slot_mean(&MergeSums::defect, step) < 0);
    }
  });
}

TEST_CASE("Periodic compression is a prefill of every longer prompt with the same count",
          "[periodic]") {
  const auto run = similar_run(4);
  const char* text = "snapkv,window=4,schedule=periodic,period=4";
  const std::vector<LayerKept> first = kept_of(*run, {text}, {"0.4"});  // 12 of 32
  const std::vector<Record> records = {Record::parse(text)};
  const auto backend = make_cpu_backend();
  const MadeUpFiles files;
  PolicyRun policies(records, {Budget::parse("0.4")}, run->info, {0}, 0, files);
  PeriodicPolicies later(policies, run->info, {0}, 0, files);
  LayerWork work(run->layers[0], *backend);
  PeriodicReplay replay(work, later, first[0], records, {});
  std::vector<double> kept_attention(10, -1.0);
  std::vector<double> total_attention(10, -1.0);
  replay.run([&](const StepBlock& block) {
    for (int64_t s = 0; s < block.steps; ++s) {
      const auto at = static_cast<size_t>(block.first_step + s);
      kept_attention[at] = block.outcomes.at(0).sums->kept.attention(1, s);
      total_attention[at] = block.outcomes.at(0).sums->total.attention(1, s);
    }
  });
  for (int64_t t0 = 32; t0 < 42; t0 += 4) {
    RandomRun longer;
    longer.info = run->info;
    longer.info.prompt_len = t0;
    longer.layers.push_back(run->layers[0]);
    longer.layers[0].info = &longer.info;
    const auto kept = kept_of(longer, {"snapkv,window=4"}, {"12"})[0][0][0];
    for (int64_t t = t0; t < std::min<int64_t>(t0 + 4, 42); ++t) {
      const auto weight =
          reference::attention(run->layers[0], 1, reference::logits(run->layers[0], 1, t)).weight;
      double some = 0, all = 0;
      for (const uint32_t i : kept->owners[0]) some += weight[i];
      for (size_t i = 0; i < static_cast<size_t>(t0); ++i) all += weight[i];
      CHECK(kept_attention[static_cast<size_t>(t - 32)] == Approx(some).margin(1e-5));
      CHECK(total_attention[static_cast<size_t>(t - 32)] == Approx(all).margin(1e-5));
    }
    if (t0 != 40) continue;  // the last compression is what is reported
    std::vector<uint32_t> prompt;
    for (const uint32_t i : kept->owners[0])
      if (i < 32) prompt.push_back(i);
    CHECK(replay.outcomes()[0].kept->owners[0] == prompt);
    CHECK(replay.outcomes()[0].first_kept->owners[0].size() == 12);
  }
}
