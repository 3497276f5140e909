// schedule=decode against a naive float64 form of the same steps, one entry at a time; so are
// budgets that differ between heads and layers, which the prompt's allocation leaves behind.
#include <catch2/catch.hpp>
#include <set>

#include "sim/core/error.hpp"
#include "sim/core/numbers.hpp"
#include "sim/policy/presets.hpp"
#include "sim/policy/record.hpp"
#include "sim/replay/layer_replay.hpp"
#include "sim/replay/slots.hpp"
#include "tests/reference/decoding.hpp"
#include "tests/reference/policy_reference.hpp"
#include "tests/support/random_records.hpp"
#include "tests/support/random_run.hpp"

using namespace kvsim;
using namespace kvsim::test;
using Rule = reference::Decoding::Rule;
using Statistic = reference::Decoding::Statistic;

namespace {

constexpr const char* kBudget = "9";

/// Steps of one layer; the naive form starts from the sets that the prompt keeps.
void compare_layer(LayerWork& work, const LayerKept& kept, const std::vector<Record>& records,
                   reference::Decoding& naive) {
  const TraceInfo& info = work.info();
  DecodeReplay replay(work, kept, records, {});
  int64_t steps = 0;
  replay.run([&](const StepBlock& block) {
    const OutcomeBlock& view = block.outcomes.at(0);
    for (int64_t s = 0; s < block.steps; ++s, ++steps) {
      naive.step(info.first_step() + block.first_step + s);
      for (int64_t h = 0; h < work.query_heads(); ++h) {
        CHECK(view.sums->kept.attention(h, s) ==
              Approx(naive.kept_attention[static_cast<size_t>(h)]).margin(1e-5));
        for (int64_t c = 0; c < work.value_dim(); ++c)
          CHECK(static_cast<double>(view.delta[(h * block.steps + s) * work.value_dim() + c]) ==
                Approx(naive.change[static_cast<size_t>(h)][static_cast<size_t>(c)]).margin(1e-4));
      }
    }
  });
  CHECK(steps == info.steps());
  const KeptSets& last = *replay.outcomes()[0].kept;
  for (size_t o = 0; o < last.owners.size(); ++o) {
    std::vector<uint32_t> expected;
    for (uint32_t i = 0; i < static_cast<uint32_t>(info.prompt_len); ++i)
      if (naive.present[o][i]) expected.push_back(i);
    CHECK(last.owners[o] == expected);
  }
}

/// Every layer of a run; returns how many slots its owners hold, none where it
/// may be and is too close to compare.
std::multiset<size_t> compare(const char* text, const Rule& rule, RandomTraceShape shape = {},
                              const std::vector<int>& layers = {0}, const char* budget = kBudget,
                              bool may_be_close = false) {
  CAPTURE(text, budget);
  shape.prompt = 30;
  shape.later = 12;
  shape.sink = true;
  const auto run = random_run(shape, layers, layers.back() + 1);
  const std::vector<LayerKept> kept = kept_of(*run, {text}, {budget});
  const std::vector<Record> records = {Record::parse(text)};
  reference::PolicyCase c;
  c.info = &run->info;
  for (const LayerTrace& layer : run->layers) c.layers.push_back(&layer);
  c.settings = records[0].settings;
  c.budget = budget;
  const reference::PolicyResult prompt = reference::run_policy(c);
  if (may_be_close && prompt.closest < 1e-5) return {};
  CHECK(prompt.closest > 1e-5);
  const auto backend = make_cpu_backend();
  std::multiset<size_t> sizes;
  for (size_t l = 0; l < layers.size(); ++l) {
    CAPTURE(l);
    LayerWork work(run->layers[l], *backend);
    std::vector<std::vector<int64_t>> sets;
    for (const reference::Head& head : prompt.layers[l]) {
      sets.push_back(head.kept);
      sizes.insert(head.kept.size());
    }
    reference::Decoding naive(run->layers[l], rule, sets, c.per_query_head());
    compare_layer(work, kept[l], records, naive);
  }
  return sizes;
}

}  // namespace

/// Records and what they do at every step: h2o:official adds up attention and keeps the newest
/// half, tova drops what the newest query attends to least (and keeps the newest token safe where
/// nobody is official), streaming the oldest that is no sink.
const std::pair<const char*, Rule> kDecoded[] = {
    {"h2o:official", {.newest_share = 0.5}},
    {"tova:official", {.statistic = Statistic::last, .mean_of_layer = true, .first_row = 29}},
    {"tova,schedule=decode",
     {.statistic = Statistic::last, .mean_of_layer = true, .first_row = 29, .newest = 1}},
    {"streaming,schedule=decode", {.statistic = Statistic::position, .sinks = 4}},
    {"h2o,allocate=ada,schedule=decode", {.statistic = Statistic::mean_visible}},
    {"h2o,weight=value-l2,schedule=decode",
     {.statistic = Statistic::mean_visible, .value_weight = true}},
    {"d2o,merge=drop,sinks=2,schedule=decode",
     {.statistic = Statistic::sum, .newest_share = 0.5, .sinks = 2}},
    {"snapkv,window=4,smooth=none,allocate=joint,schedule=decode",
     {.statistic = Statistic::mean, .first_row = 26, .newest = 4}},
    {"morphkv,window=4",
     {.statistic = Statistic::mean, .first_row = 26, .fold = Rule::Fold::sum, .window = 4}}};

TEST_CASE("Decoding: every kind of score drops what its rule says", "[decode]") {
  for (const auto& [record, rule] : kDecoded) compare(record, rule);
}

TEST_CASE("Decoding: scores times the slot's own norm, over the entry's norms in all heads",
          "[decode]") {
  const char* weighted = "h2o,weight=value-l2,schedule=decode";
  compare(weighted, {.statistic = Statistic::mean_visible, .value_weight = true});
  compare("h2o,weight=value-l2,normalize=head-sum,schedule=decode",  // the same order
          {.statistic = Statistic::mean_visible, .value_weight = true});
  RandomTraceShape shape;
  shape.kv_heads = 4;
  compare("h2o,weight=value-l2,normalize=token-heads,schedule=decode",
          {.statistic = Statistic::mean_visible, .value_weight = true, .over_heads = true}, shape);
}

TEST_CASE("Decoding: what the allocation gave heads and layers at n is held", "[decode]") {
  const RandomTraceShape groups;  // two query heads for each of two KV heads
  RandomTraceShape alone;
  alone.query_heads = alone.kv_heads = 3;
  alone.seed = 4;
  const std::vector<int> layers = {0, 2, 3};
  const Rule seen{.statistic = Statistic::mean_visible};
  const Rule window{.statistic = Statistic::mean, .first_row = 26, .newest = 4};
  for (const RandomTraceShape& shape : {groups, alone}) {
    compare("h2o,allocate=ada,schedule=decode", seen, shape, layers);
    for (const char* record :
         {"h2o,allocate=joint,schedule=decode", "h2o,allocate=cake,schedule=decode",
          "h2o,allocate=cosine,cosine_floor=0.2,schedule=decode"})
      compare(record, seen, shape, layers);
    compare("d2o,merge=drop,sinks=2,schedule=decode",
            {.statistic = Statistic::sum, .newest_share = 0.5, .sinks = 2}, shape, layers);
    for (const char* record :
         {"snapkv,window=4,smooth=none,allocate=pyramid,schedule=decode",
          "snapkv,window=4,smooth=none,allocate=joint,schedule=decode",
          "snapkv,window=4,smooth=none,allocate=cake,schedule=decode",
          "snapkv,window=4,smooth=none,allocate=ada,ada_floor=0,schedule=decode"}) {
      const auto sizes = compare(record, window, shape, layers);
      CAPTURE(record);
      CHECK(std::set<size_t>(sizes.begin(), sizes.end()).size() > 1);  // not the same for all
    }
  }
}

TEST_CASE("Decoding: a count above the prompt is filled before a slot leaves", "[decode]") {
  const char* record = "h2o,schedule=decode";
  compare(record, {.statistic = Statistic::mean_visible, .places = 34}, {}, {0, 1}, "34");
  compare(record, {.statistic = Statistic::mean_visible, .places = 30}, {}, {0}, "1.0");
  compare("streaming,schedule=decode", {.statistic = Statistic::position, .sinks = 4, .places = 36},
          {}, {0}, "36");
}

TEST_CASE("Decoding: random:prompt keeps the prompt and a random set of later slots", "[decode]") {
  const Rule rule{.statistic = Statistic::random, .keeps_prompt = true, .places = 35};
  compare("random:prompt", rule, {}, {0, 2}, "35");
  compare("random:prompt", {.statistic = Statistic::random, .keeps_prompt = true});
}

TEST_CASE("Decoding: morphkv adds up the attention of the newest queries, over heads, too",
          "[decode]") {
  Rule rule{.statistic = Statistic::mean, .first_row = 26, .fold = Rule::Fold::sum, .window = 4};
  rule.places = 35;
  compare("morphkv,window=4", rule, {}, {0, 1}, "35");
}

TEST_CASE("Decoding: r-kv pools over slots and lowers what other keys say, too", "[decode]") {
  Rule rule{.statistic = Statistic::mean,
            .first_row = 27,
            .fold = Rule::Fold::max,
            .window = 3,
            .pooled = 3,
            .mix = 0.07,
            .batch_share = 0.25};
  const char* record = "r-kv,window=3,kernel=3";
  RandomTraceShape shape;
  for (const uint64_t seed : {1, 2, 3}) {
    shape.seed = seed;
    rule.places = 0;
    compare(record, rule, shape, {0, 1}, "12");
    rule.places = 34;
    compare(record, rule, shape, {0, 1}, "34");
  }
  rule.mix = 0.9;
  compare("r-kv,window=3,kernel=3,redundancy_mix=0.9", rule, shape, {0}, "34");
}

TEST_CASE("Decoding: g-kv remembers the decayed largest score", "[decode]") {
  Rule rule{.statistic = Statistic::mean,
            .first_row = 27,
            .fold = Rule::Fold::max,
            .window = 3,
            .mix = 0.5,
            .decay = 0.8,
            .batch_share = 0.25};
  RandomTraceShape shape;
  for (const uint64_t seed : {1, 2, 3}) {
    shape.seed = seed;
    rule.places = 0;
    compare("g-kv,window=3", rule, shape, {0, 1}, "12");
    rule.places = 34;
    compare("g-kv,window=3", rule, shape, {0, 1}, "34");
  }
}

TEST_CASE("Decoding: triattention scores anew from all queries so far", "[decode]") {
  Rule rule{.statistic = Statistic::trigonometric,
            .reach = 16,
            .batch_share = 0.25,
            .keeps_prompt = true};
  RandomTraceShape shape;
  for (const uint64_t seed : {1, 2}) {
    shape.seed = seed;
    rule.places = 36;
    compare("triattention:decode,trigonometric_reach=16", rule, shape, {0, 1}, "36");
    rule.places = 0;
    rule.keeps_prompt = false;
    compare("triattention:decode,trigonometric_reach=16,keep_prompt=no", rule, shape, {0}, "12");
    rule.keeps_prompt = true;
  }
}

TEST_CASE("Decoding: heads that have one set, and whole blocks that leave", "[decode]") {
  RandomTraceShape shape;
  for (const uint64_t seed : {1, 2, 3}) {
    shape.seed = seed;
    Rule rule{.statistic = Statistic::mean_visible, .united = true};
    compare("h2o,union=mean,schedule=decode", rule, shape, {0, 1});
    rule.places = 34;
    compare("h2o,union=mean,schedule=decode", rule, shape, {0}, "34");
    rule.united = false;
    for (const char* budget : {"9", "13", "34"}) {
      rule.block = 4;
      rule.places = std::atoi(budget);
      compare("h2o,block=4,schedule=decode", rule, shape, {0, 1}, budget);
    }
    rule.newest = 8;  // at 9 no block of 4 may leave, and single slots do
    for (const char* budget : {"9", "16"}) {
      rule.places = std::atoi(budget);
      compare("h2o,recent=8,block=4,schedule=decode", rule, shape, {0}, budget);
    }
    Rule r_kv{.statistic = Statistic::mean,
              .first_row = 27,
              .fold = Rule::Fold::max,
              .window = 3,
              .pooled = 3,
              .mix = 0.07,
              .batch_share = 0.25,
              .united = true,
              .block = 4};
    Rule far{.statistic = Statistic::trigonometric,
             .reach = 16,
             .batch_share = 0.25,
             .keeps_prompt = true,
             .united = true,
             .block = 4};
    for (const char* budget : {"14", "36"}) {
      r_kv.places = far.places = std::atoi(budget);
      compare("r-kv,window=3,kernel=3,union=mean,block=4", r_kv, shape, {0, 1}, budget);
    }
    compare("triattention:decode,trigonometric_reach=16,union=mean,block=4", far, shape, {0}, "36");
  }
}

TEST_CASE("Decoding: every kind of union leaves all heads of a layer one set", "[decode]") {
  RandomTraceShape shape;
  shape.prompt = 30;
  shape.later = 12;
  shape.kv_heads = 4;
  const auto run = random_run(shape, {0}, 1);
  const auto backend = make_cpu_backend();
  LayerWork work(run->layers[0], *backend);
  for (const char* kind : {"mean", "max", "root-mean-square", "best-rank"})
    for (const char* record : {"h2o", "tova", "r-kv,window=3", "snapkv,window=4,smooth=none"}) {
      const std::string text = std::string(record) + ",schedule=decode,union=" + kind;
      CAPTURE(text);
      const std::vector<LayerKept> kept = kept_of(*run, {text}, {"9"});
      const std::vector<Record> records = {Record::parse(text)};
      DecodeReplay replay(work, kept[0], records, {});
      replay.run([](const StepBlock&) {});
      const KeptSets& last = *replay.outcomes()[0].kept;
      CHECK(last.owners.front() != kept[0][0][0]->owners.front());
      for (const auto& owner : last.owners) CHECK(owner == last.owners.front());
    }
}

TEST_CASE("Decoding: a buffer fills up beside the budget, then all above the budget leave",
          "[decode]") {
  Rule rule{.statistic = Statistic::mean_visible, .buffer = 3};
  compare("h2o,schedule=decode,buffer=3", rule, {}, {0, 1});
  rule.places = 33;
  compare("h2o,schedule=decode,buffer=3", rule, {}, {0}, "33");
  rule.places = 0;
  rule.buffer = 4;  // half of 9
  compare("h2o,schedule=decode,buffer=0.5", rule);
  rule.batch_share = 0.7;  // 6, more than 4 + 1
  compare("h2o,schedule=decode,buffer=0.5,evict_batch=0.7", rule);
  compare("streaming,schedule=decode,buffer=2",
          {.statistic = Statistic::position, .sinks = 4, .buffer = 2});
}

TEST_CASE("Decoding: what is kept of the prompt can stay, whatever the policy", "[decode]") {
  RandomTraceShape shape;
  shape.prompt = 30;
  shape.later = 12;
  const auto run = random_run(shape, {0}, 1);
  const auto backend = make_cpu_backend();
  LayerWork work(run->layers[0], *backend);
  int decoded = 0;
  for (const Preset& preset : presets()) {
    const std::string text = preset_title(preset) + ",schedule=decode,keep_prompt=yes,buffer=2";
    CAPTURE(text);
    std::vector<Record> records;
    try {
      records = {Record::parse(text)};
    } catch (const Error&) {
      continue;  // a policy that cannot decode, and says so
    }
    if (!file_keys(records[0].settings).empty()) continue;
    for (const char* budget : {"9", "33"}) {
      CAPTURE(budget);
      const std::vector<LayerKept> kept = kept_of(*run, {text}, {budget});
      const KeptSets& prompt = *kept[0][0][0];
      if (leaves_cache_alone(work, prompt, records[0].settings)) continue;  // `full`
      ++decoded;
      DecodeReplay replay(work, kept[0], records, {});
      replay.run([](const StepBlock&) {});
      const ReplayOutcome& outcome = replay.outcomes()[0];
      for (size_t o = 0; o < prompt.owners.size(); ++o)
        CHECK(outcome.kept->owners[o] == prompt.owners[o]);
    }
  }
  CHECK(decoded >= 40);
}

TEST_CASE("Decoding: random shapes and budgets, every kind of score", "[decode]") {
  const size_t count = asked_records(36);
  size_t compared = 0;
  for (size_t at = 0; at < count; ++at) {
    const auto draw = [&](uint64_t what, int64_t choices) {
      return static_cast<int64_t>(uniform(at, what, 9, 0) * static_cast<double>(choices));
    };
    const auto& [record, rule] = kDecoded[at % std::size(kDecoded)];
    RandomTraceShape shape;
    shape.seed = at + 100;
    shape.kv_heads = 1 + static_cast<int>(draw(1, 3));
    shape.query_heads = shape.kv_heads * (1 + static_cast<int>(draw(2, 3)));
    shape.d = 4 + draw(3, 13);
    shape.dv = 4 + draw(4, 13);
    const auto sizes = compare(record, rule, shape,
                               draw(5, 2) == 0 ? std::vector{0} : std::vector{0, 2},
                               std::to_string(6 + draw(6, 20)).c_str(), true);
    compared += sizes.empty() ? 0 : 1;
  }
  CHECK(compared * 20 > count * 19);
}
