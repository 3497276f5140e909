// schedule=decode against a naive float64 form of the same steps, one entry at a time.
#include <catch2/catch.hpp>

#include <algorithm>
#include <functional>
#include <numeric>

#include "sim/replay/decode.hpp"
#include "tests/reference/reference.hpp"
#include "tests/support/random_run.hpp"

using namespace kvsim;
using namespace kvsim::test;

namespace {

/// What a record does, said apart from its stages.
struct Rule {
  bool per_query_head = false;
  bool mean_of_layer = false;       ///< one row for all heads
  bool sums = false;                ///< the statistic adds up; else the newest row counts
  int64_t first_row = 0;            ///< of the prompt's observing queries
  int64_t recent = 0;               ///< newest entries that are safe
  int64_t sinks = 0;
  bool by_position = false;         ///< the oldest leaves
};

/// Everything in float64: presence and statistic of every entry of every owner.
class NaiveDecode {
 public:
  NaiveDecode(const LayerTrace& layer, Rule rule, size_t budget)
      : layer_(layer), info_(*layer.info), rule_(rule), budget_(budget),
        heads_(rule.per_query_head ? 1 : info_.group_size()) {
    const auto owners = static_cast<size_t>(info_.num_query_heads / heads_);
    const auto all = static_cast<size_t>(info_.total_len);
    present.assign(owners, std::vector<bool>(all, false));
    statistic_.assign(owners, std::vector<double>(all, 0.0));
    for (auto& owner : present)
      std::fill_n(owner.begin(), info_.prompt_len, true);
    for (int64_t j = rule.first_row; j < info_.prompt_len; ++j) update(j, false);
    for (size_t o = 0; o < owners; ++o)
      while (count(o) > budget_) present[o][lowest(o, info_.prompt_len - 1)] = false;
  }

  /// One later step; fills kept attention and z^ - z per query head.
  void step(int64_t row) {
    const int64_t t = info_.query_position[static_cast<size_t>(row)];
    for (auto& owner : present) owner[static_cast<size_t>(t)] = true;
    kept_attention.clear();
    change.clear();
    for (int head = 0; head < info_.num_query_heads; ++head) {
      const auto logits = reference::logits(layer_, head, row);
      const auto full = reference::attention(layer_, head, logits);
      const auto& own = present[static_cast<size_t>(head / heads_)];
      const auto some = reference::attention(layer_, head, logits, own);
      double kept = 0;
      for (size_t i = 0; i < static_cast<size_t>(t); ++i) kept += own[i] ? full.weight[i] : 0;
      kept_attention.push_back(kept);
      auto delta = reference::output(layer_, head, some.weight);
      const auto z = reference::output(layer_, head, full.weight);
      for (size_t c = 0; c < delta.size(); ++c) delta[c] -= z[c];
      change.push_back(delta);
    }
    update(row, true);
    for (size_t o = 0; o < present.size(); ++o)
      if (count(o) > budget_) present[o][lowest(o, t)] = false;
  }

  std::vector<std::vector<bool>> present;
  std::vector<double> kept_attention;
  std::vector<std::vector<double>> change;

 private:
  size_t count(size_t owner) const {
    return static_cast<size_t>(std::ranges::count(present[owner], true));
  }
  void update(int64_t row, bool of_present) {
    std::vector<std::vector<double>> rows(present.size(),
                                          std::vector<double>(present[0].size(), 0.0));
    for (int head = 0; head < info_.num_query_heads; ++head) {
      const auto o = static_cast<size_t>(head / heads_);
      const auto weight = reference::attention(layer_, head, reference::logits(layer_, head, row),
                                               of_present ? present[o] : std::vector<bool>())
                              .weight;
      for (size_t owner = 0; owner < rows.size(); ++owner) {
        if (!rule_.mean_of_layer && owner != o) continue;
        for (size_t i = 0; i < weight.size(); ++i)
          rows[owner][i] += weight[i] / (rule_.mean_of_layer ? info_.num_query_heads : heads_);
      }
    }
    for (size_t o = 0; o < rows.size(); ++o)
      for (size_t i = 0; i < rows[o].size(); ++i)
        statistic_[o][i] = rule_.sums ? statistic_[o][i] + rows[o][i] : rows[o][i];
  }
  size_t lowest(size_t owner, int64_t newest) const {
    std::vector<size_t> open;
    std::vector<size_t> all;
    for (size_t i = 0; i <= static_cast<size_t>(newest); ++i)
      if (present[owner][i]) all.push_back(i);
    for (size_t x = 0; x < all.size(); ++x)
      if (x + static_cast<size_t>(rule_.recent) < all.size() &&
          all[x] >= static_cast<size_t>(rule_.sinks))
        open.push_back(all[x]);
    const auto score = [&](size_t i) {
      return rule_.by_position ? static_cast<double>(i) : statistic_[owner][i];
    };
    return *std::ranges::min_element(open, {}, score);
  }

  const LayerTrace& layer_;
  const TraceInfo& info_;
  Rule rule_;
  size_t budget_;
  int heads_;
  std::vector<std::vector<double>> statistic_;
};

void compare(const char* record, const Rule& rule) {
  RandomTraceShape shape;
  shape.prompt = 30;
  shape.later = 12;
  shape.sink = true;
  const auto run = random_run(shape, {0}, 1);
  const std::vector<LayerKept> kept = kept_of(*run, {record}, {"9"});
  const auto backend = make_cpu_backend();
  LayerWork work(run->layers[0], *backend);
  const std::vector<Record> records = {Record::parse(record)};
  DecodeReplay replay(work, kept[0], records, {});
  NaiveDecode naive(run->layers[0], rule, 9);

  int64_t steps = 0;
  replay.run([&](const StepBlock& block) {
    const OutcomeBlock& view = block.outcomes.at(0);
    for (int64_t s = 0; s < block.steps; ++s, ++steps) {
      naive.step(run->info.first_step() + block.first_step + s);
      for (int64_t h = 0; h < work.query_heads(); ++h) {
        CHECK((*view.kept_attention)(h, s) ==
              Approx(naive.kept_attention[static_cast<size_t>(h)]).margin(1e-5));
        for (int64_t c = 0; c < work.value_dim(); ++c)
          CHECK(static_cast<double>(view.delta[(h * block.steps + s) * work.value_dim() + c]) ==
                Approx(naive.change[static_cast<size_t>(h)][static_cast<size_t>(c)]).margin(1e-4));
      }
    }
  });
  CHECK(steps == run->info.steps());
  const KeptSets& last = *replay.outcomes()[0].kept;
  for (size_t o = 0; o < last.owners.size(); ++o) {
    std::vector<uint32_t> expected;
    for (uint32_t i = 0; i < static_cast<uint32_t>(shape.prompt); ++i)
      if (naive.present[o][i]) expected.push_back(i);
    CHECK(last.owners[o] == expected);
  }
}

}  // namespace

TEST_CASE("Decoding: h2o:official adds up attention and keeps the newest half", "[decode]") {
  compare("h2o:official", {.per_query_head = true, .sums = true, .recent = 4});
}

TEST_CASE("Decoding: tova:official drops what the newest query attends to least", "[decode]") {
  compare("tova:official", {.mean_of_layer = true, .first_row = 29});
}

TEST_CASE("Decoding: tova keeps the newest token safe", "[decode]") {
  compare("tova,schedule=decode", {.mean_of_layer = true, .first_row = 29, .recent = 1});
}

TEST_CASE("Decoding: streaming drops the oldest that is no sink", "[decode]") {
  compare("streaming,schedule=decode", {.sinks = 4, .by_position = true});
}
