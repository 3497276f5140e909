// schedule=periodic without merging: at every t_k the naive policy chooses from the full cache
// 0..t_k-1, and naive attention says what the steps up to the next one see.
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdlib>
#include <optional>
#include <stdexcept>

#include "sim/core/error.hpp"
#include "sim/replay/layer_replay.hpp"
#include "tests/reference/policy_reference.hpp"
#include "tests/reference/reference.hpp"
#include "tests/support/random_records.hpp"
#include "tests/support/random_run.hpp"

using namespace kvsim;
using namespace kvsim::test;

namespace {

constexpr int64_t kPeriod = 5;
constexpr const char* kPeriodicBudget = "8";

/// What a record keeps at every compression: [compression][layer][owner].
struct NaivePeriods {
  NaivePeriods(const RandomRun& run, const Settings& settings) {
    for (int64_t t = run.info.prompt_len; t < run.info.total_len; t += kPeriod) {
      TraceInfo seen = run.info;
      seen.prompt_len = t;
      std::vector<LayerTrace> layers = run.layers;
      reference::PolicyCase c;
      c.info = &seen;
      for (LayerTrace& layer : layers) {
        layer.info = &seen;
        c.layers.push_back(&layer);
      }
      c.settings = settings;
      c.budget = kPeriodicBudget;
      per_query_head = c.per_query_head();
      c.texts = MadeUpFiles().token_text();
      const reference::PolicyResult result = reference::run_policy(c);
      closest = std::min(closest, result.closest);
      kept.push_back(result.layers);
    }
  }
  std::vector<std::vector<std::vector<reference::Head>>> kept;
  bool per_query_head = false;
  double closest = INFINITY;  ///< what the closest decision hung on
};

void compare_step(const LayerTrace& layer, const std::vector<reference::Head>& kept,
                  int64_t compressed_at, const OutcomeBlock& view, const StepBlock& block,
                  int64_t s) {
  const TraceInfo& info = *layer.info;
  const int64_t row = info.first_step() + block.first_step + s;
  const size_t sharing = static_cast<size_t>(info.num_query_heads) / kept.size();
  if (view.delta == nullptr) {  // the full cache
    for (const reference::Head& all : kept) CHECK(std::ssize(all.kept) == compressed_at);
    return;
  }
  for (int head = 0; head < info.num_query_heads; ++head) {
    std::vector<bool> present(static_cast<size_t>(info.total_len), true);
    std::fill_n(present.begin(), compressed_at, false);
    for (const int64_t i : kept[static_cast<size_t>(head) / sharing].kept)
      present[static_cast<size_t>(i)] = true;
    const auto logits = reference::logits(layer, head, row);
    const auto full = reference::attention(layer, head, logits);
    const auto some = reference::attention(layer, head, logits, present);
    double attention = 0;
    for (size_t i = 0; i < static_cast<size_t>(compressed_at); ++i)
      attention += present[i] ? full.weight[i] : 0;
    CHECK(view.sums->kept.attention(head, s) == Approx(attention).margin(1e-5));
    const auto z = reference::output(layer, head, full.weight);
    const auto z_hat = reference::output(layer, head, some.weight);
    for (size_t c = 0; c < z.size(); ++c) {
      const size_t at = static_cast<size_t>(head * block.steps + s) * z.size() + c;
      CHECK(static_cast<double>(view.delta[at]) == Approx(z_hat[c] - z[c]).margin(1e-4));
    }
  }
}

/// None where a score is not a number.
std::optional<NaivePeriods> naive_periods(const RandomRun& run, const Settings& settings) {
  try {
    return NaivePeriods(run, settings);
  } catch (const std::domain_error&) {
    return std::nullopt;
  }
}

/// Every step of a record; `look` sees it, its layer and its number.
template <class Look>
void replay_steps(const RandomRun& run, const std::string& text, Look look) {
  const std::vector<Record> records = {Record::parse(text)};
  const std::vector<LayerKept> kept = kept_of(run, {text}, {kPeriodicBudget});
  const auto backend = make_cpu_backend();
  const MadeUpFiles files;
  PolicyRun policies(records, {Budget::parse(kPeriodicBudget)}, run.info, run.layer_indices(), 0,
                     files);
  check_compressions(records, {Budget::parse(kPeriodicBudget)}, run.info, run.layer_indices(),
                     files);
  PeriodicPolicies periodic(policies, run.info, run.layer_indices(), 0, files);
  for (const LayerTrace& layer : run.layers) periodic.survey(layer, *backend);
  periodic.finish_survey();
  for (size_t l = 0; l < run.layers.size(); ++l) {
    CAPTURE(l);
    LayerWork work(run.layers[l], *backend);
    LayerReplay replay(work, periodic, kept[l], records, {});
    int64_t steps = 0;
    replay.run([&](const StepBlock& block) {
      for (const OutcomeBlock& view : block.outcomes)
        for (int64_t s = 0; s < block.steps; ++s, ++steps) look(l, view, block, s);
    });
    CHECK(steps == run.info.steps());
  }
}

/// False where a decision was too close to compare, or both forms refuse the record.
bool compare(const RandomRun& run, const std::string& base) {
  const std::string text = base + ",schedule=periodic,period=" + std::to_string(kPeriod);
  CAPTURE(text);
  const auto naive = naive_periods(run, Record::parse(text).settings);
  if (naive && naive->closest < 1e-5) return false;
  try {
    replay_steps(run, text,
                 [&](size_t l, const OutcomeBlock& view, const StepBlock& block, int64_t s) {
      if (!naive) return;
      const auto k = static_cast<size_t>((block.first_step + s) / kPeriod);
      compare_step(run.layers[l], naive->kept[k][l],
                   run.info.prompt_len + static_cast<int64_t>(k) * kPeriod, view, block, s);
    });
  } catch (const Error& error) {
    CHECK(error.fault() == Fault::bad_data);
    CHECK_FALSE(naive);
    return false;
  }
  CHECK(naive);
  return true;
}

/// Do the rules allow the schedule, and is what is kept only dropped from? Files are not read here.
bool can_be_periodic(const std::string& record, const TraceInfo& info) {
  if (record.find("=FILE") != std::string::npos) return false;
  try {
    const Record parsed = Record::parse(record + ",schedule=periodic,period=5");
    const MadeUpFiles files;
    check_compressions({parsed}, {Budget::parse(kPeriodicBudget)}, info, info.layers, files);
    PolicyRun({parsed}, {Budget::parse(kPeriodicBudget)}, info, info.layers, 0, files);
    return parsed.settings.is("merge", "drop") && parsed.settings.is("quantize", "none") &&
           !parsed.settings.is("positions", "cache");
  } catch (const Error&) {
    return false;
  }
}

}  // namespace

TEST_CASE("Periodic: every compression is that of a prompt that ends there", "[periodic]") {
  RandomTraceShape shape{.prompt = 26, .later = 12};
  for (const bool grouped : {true, false}) {
    if (!grouped) shape.kv_heads = shape.query_heads;
    shape.sink = grouped;
    const auto run = random_run(shape, {0, 2, 3}, 5);
    for (const char* record :
         {"snapkv,window=4", "snapkv:official,window=4", "h2o", "adakv,window=4",
          "snapkv,window=4,allocate=pyramid,pyramid_beta=3", "cake,window=4", "d2o,merge=drop",
          "layer-defensivekv,window=4", "restkv,window=4", "tova", "random"})
      CHECK(compare(*run, record));
  }
}

TEST_CASE("Periodic: random records compress as prompts that end there", "[periodic]") {
  RandomTraceShape shape;
  shape.prompt = 26;
  shape.later = 12;
  const auto run = random_run(shape, {0, 2}, 3);
  size_t compared = 0, tried = 0;
  for (const std::string& record : random_records(asked_records(120), 7)) {
    if (!can_be_periodic(record, run->info)) continue;
    ++tried;
    compared += compare(*run, record) ? 1 : 0;
  }
  CHECK(compared > tried * 9 / 10);
  CHECK(tried > 10);
  if (std::getenv("KVSIM_RECORDS") != nullptr) WARN(compared << " periodic records compared");
}
