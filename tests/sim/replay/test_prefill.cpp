#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>

#include "analysis/formulas.hpp"
#include "analysis/measure.hpp"
#include "sim/core/numbers.hpp"
#include "sim/replay/slots.hpp"
#include "tests/reference/reference.hpp"
#include "tests/reference/replay.hpp"
#include "tests/support/random_trace.hpp"

using namespace kvsim;
using namespace kvsim::test;

namespace {

// Float32 data and products against float64: errors of single outputs stay below 1e-5 of them.
constexpr double kTolerance = 2e-5;

std::shared_ptr<KeptSets> random_sets(const TraceInfo& info, double share, uint64_t seed,
                                      bool per_query_head = false) {
  auto kept = std::make_shared<KeptSets>();
  kept->per_query_head = per_query_head;
  const int owners = per_query_head ? info.num_query_heads : info.num_kv_heads;
  for (int o = 0; o < owners; ++o) {
    std::vector<uint32_t> entries;
    for (int64_t i = 0; i < info.prompt_len; ++i) {
      // The same draw for every share: sets of one seed are nested.
      const auto owner = static_cast<uint64_t>(o);
      if (uniform(seed, owner, 0, static_cast<uint64_t>(i)) < share) {
        entries.push_back(static_cast<uint32_t>(i));
      }
    }
    kept->owners.push_back(std::move(entries));
  }
  kept->guarded.assign(kept->owners.size(), {});
  kept->tied.assign(kept->owners.size(), 0);
  return kept;
}

/// One layer replayed and measured; outcomes by (record, budget).
struct Replayed {
  Replayed(const RandomTrace& trace, LayerKept sets, std::vector<const char*> texts,
           PrefillOptions options = {})
      : backend(make_cpu_backend()), work(trace.layer, *backend), kept(std::move(sets)) {
    for (const char* text : texts) records.push_back(Record::parse(text));
    replay = std::make_unique<PrefillReplay>(work, kept, records, options);
    const size_t outcomes = replay->outcomes().size();
    importance = attention = Table<double>(std::ssize(replay->outcomes()), trace.info.steps(),
                                           kUndefined);
    norms = std::make_unique<OutputNorms>(work, outcomes, evaluated_steps(trace.info.steps(), 0),
                                          true, false);
    replay->run([&](const StepBlock& block) {
      norms->add(block);
      for (const OutcomeBlock& view : block.outcomes) {
        retained_pooled(view.sums->kept.importance, view.sums->total.importance,
                        importance.row(view.outcome).subspan(block.first_step, block.steps));
        retained_pooled(view.sums->kept.attention, view.sums->total.attention,
                        attention.row(view.outcome).subspan(block.first_step, block.steps));
      }
    });
  }
  const ReplayOutcome& outcome(int record, int budget) const {
    for (const ReplayOutcome& one : replay->outcomes()) {
      for (const ReplayCell cell : one.cells) {
        if (cell.record == record && cell.budget == budget) return one;
      }
    }
    throw std::logic_error("no such cell");
  }
  size_t number(int record, int budget) const {
    return static_cast<size_t>(&outcome(record, budget) - replay->outcomes().data());
  }
  double output_error(int record, int budget, int64_t step) const {
    const auto s = static_cast<size_t>(step);
    return relative_error(norms->error(number(record, budget))[s], norms->full()[s]);
  }

  std::unique_ptr<Backend> backend;
  LayerWork work;
  LayerKept kept;
  std::vector<Record> records;
  std::unique_ptr<PrefillReplay> replay;
  Table<double> importance, attention;
  std::unique_ptr<OutputNorms> norms;
};

void check_against_reference(const RandomTrace& trace, const Replayed& replayed, int record,
                             int budget) {
  const KeptSets& kept = *replayed.kept[static_cast<size_t>(record)][static_cast<size_t>(budget)];
  const auto expected = reference::replay(trace.layer, kept.owners, kept.per_query_head);
  const size_t o = replayed.number(record, budget);
  for (size_t s = 0; s < expected.size(); ++s) {
    CHECK(replayed.importance(o, s) == Approx(expected[s].retained_importance).margin(kTolerance));
    CHECK(replayed.attention(o, s) == Approx(expected[s].retained_attention).margin(kTolerance));
    CHECK(replayed.output_error(record, budget, static_cast<int64_t>(s)) ==
          Approx(expected[s].output_error).margin(kTolerance));
    for (int h = 0; h < trace.info.num_query_heads; ++h) {
      const auto step = static_cast<int64_t>(s);
      CHECK(relative_error(replayed.norms->error_heads(o)(h, step),
                           replayed.norms->full_heads()(h, step)) ==
            Approx(expected[s].output_error_head[static_cast<size_t>(h)]).margin(kTolerance));
    }
  }
}

}  // namespace

TEST_CASE("nested, other and per-head sets replay as the reference says", "[replay]") {
  RandomTraceShape shape;
  SECTION("plain") {}
  SECTION("softcap and sinks") {
    shape.softcap = 3;
    shape.sink = true;
  }
  SECTION("values narrower than keys, some queries stored") {
    shape.dv = 8;
    shape.queries = {0, 5, 39, 41, 44, 48};
  }
  const auto trace = random_trace(shape);
  const TraceInfo& info = trace->info;
  const Replayed replayed(*trace,
                          {{random_sets(info, 0.2, 1), random_sets(info, 0.6, 1)},
                           {random_sets(info, 0.3, 2), random_sets(info, 0.3, 3)},
                           {random_sets(info, 0.4, 4, true), random_sets(info, 0, 5)}},
                          {"snapkv", "tova", "snapkv:official"});
  for (int record = 0; record < 3; ++record) {
    for (int budget = 0; budget < 2; ++budget) {
      check_against_reference(*trace, replayed, record, budget);
    }
  }
}

TEST_CASE("equal caches are replayed once and a full cache loses nothing at all", "[replay]") {
  const auto trace = random_trace({});
  const auto set = random_sets(trace->info, 0.5, 1);
  const auto same = random_sets(trace->info, 0.5, 1);
  const auto all = random_sets(trace->info, 2, 1);
  const Replayed replayed(*trace, {{set, all}, {same, all}}, {"snapkv", "tova"});
  CHECK(replayed.replay->outcomes().size() == 2);
  const size_t full = replayed.number(1, 1);
  for (const double error : replayed.norms->error(full)) CHECK(error == 0);
  for (const double share : replayed.importance.row(full)) CHECK(share == 1);
}

TEST_CASE("unchanged slots give what the fused replay gives", "[replay]") {
  const auto trace = random_trace({.softcap = 5, .sink = true});
  const bool per_query_head = GENERATE(false, true);
  const auto set = random_sets(trace->info, 0.4, 9, per_query_head);
  const auto backend = make_cpu_backend();
  LayerWork work(trace->layer, *backend);
  const LayerSlots slots = slots_of(work, *set);
  const int64_t steps = trace->info.steps();
  std::vector<float> z_hat(
      static_cast<size_t>(trace->info.num_query_heads * steps * work.value_dim()));
  SlotAttention(work).run(slots, 0, steps, z_hat.data());
  for (int head = 0; head < trace->info.num_query_heads; ++head) {
    const auto owner = static_cast<size_t>(per_query_head ? head : head / trace->info.group_size());
    std::vector<bool> present(static_cast<size_t>(trace->info.total_len), true);
    std::fill_n(present.begin(), trace->info.prompt_len, false);
    for (const uint32_t i : set->owners[owner]) present[i] = true;
    for (int64_t s = 0; s < steps; ++s) {
      const int64_t row = trace->info.first_step() + s;
      const auto expected = reference::output(
          trace->layer, head,
          reference::attention(trace->layer, head, reference::logits(trace->layer, head, row),
                               present)
              .weight);
      for (size_t c = 0; c < expected.size(); ++c) {
        const auto at = static_cast<size_t>((head * steps + s) * work.value_dim()) + c;
        CHECK(z_hat[at] == Approx(expected[c]).margin(kTolerance));
      }
    }
  }
}

TEST_CASE("votes and biases add to the logits of their slots", "[replay]") {
  const auto trace = random_trace({});
  const auto set = random_sets(trace->info, 0.3, 2);
  const auto backend = make_cpu_backend();
  LayerWork work(trace->layer, *backend);
  const int64_t steps = trace->info.steps();
  const auto size = static_cast<size_t>(trace->info.num_query_heads * steps * work.value_dim());
  // A weight of 2 for slot 0 is the same as holding it twice.
  LayerSlots weighted = slots_of(work, *set);
  LayerSlots doubled = slots_of(work, *set);
  for (size_t o = 0; o < weighted.owners.size(); ++o) {
    OwnerSlots& owner = weighted.owners[o];
    owner.log_weight = Table<float>(trace->info.group_size(), owner.k.rows(), 0.0f);
    for (int x = 0; x < trace->info.group_size(); ++x) owner.log_weight(x, 0) = std::log(2.0f);
    OwnerSlots& twice = doubled.owners[o];
    for (Table<float>* table : {&twice.k, &twice.v}) {
      Table<float> longer(table->rows() + 1, table->columns());
      std::ranges::copy(table->values(), longer.values().begin());
      std::ranges::copy(table->row(0), longer.row(table->rows()).begin());
      *table = longer;
    }
  }
  std::vector<float> a(size);
  std::vector<float> b(size);
  SlotAttention(work).run(weighted, 0, steps, a.data());
  SlotAttention(work).run(doubled, 0, steps, b.data());
  for (size_t x = 0; x < size; ++x) CHECK(a[x] == Approx(b[x]).margin(kTolerance));
}
