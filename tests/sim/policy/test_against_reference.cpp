#include <catch2/catch.hpp>
#include <cmath>
#include <cstdlib>

#include "sim/core/error.hpp"
#include "sim/core/numbers.hpp"
#include "sim/policy/policy_run.hpp"
#include "sim/policy/presets.hpp"
#include "tests/reference/policy_reference.hpp"
#include "tests/support/random_records.hpp"
#include "tests/support/random_run.hpp"

namespace kvsim {
namespace {

/// Scores of the two arithmetics differ by about 1e-6 of themselves; sets whose last decision was
/// closer than this may differ.
constexpr double kTooClose = 1e-5;

test::MadeUpFiles files_of(const test::RandomRun& run, int64_t owners, const Settings& settings) {
  test::MadeUpFiles files;
  for (const int layer : run.info.layers) {
    Table<double> scores(owners, run.info.prompt_len);
    for (size_t i = 0; i < scores.values().size(); ++i)
      scores.values()[i] = test::normal(5, static_cast<uint64_t>(layer), i);
    files.layer_scores[layer] = scores;
  }
  files.rows = Table<double>(run.info.num_layers, owners);
  for (size_t i = 0; i < files.rows.values().size(); ++i) {
    const double gate = 1.4 * uniform(6, 0, i, 0) - 0.2;  // some have to be clipped
    files.rows.values()[i] = settings.is("allocate", "table") ? std::floor(40 * gate + 8) : gate;
  }
  return files;
}

/// How often something was compared, and how often it was too close to compare.
struct Tally {
  int compared = 0;
  int too_close = 0;
};

void compare(const test::RandomRun& run, const std::string& text,
             const std::vector<std::string>& budgets, Tally& tally) {
  const Record record = Record::parse(text);
  reference::PolicyCase c;
  c.info = &run.info;
  for (const LayerTrace& layer : run.layers) c.layers.push_back(&layer);
  c.settings = record.settings;
  c.seed = 3;
  const test::MadeUpFiles files = files_of(run, c.owners(), c.settings);
  c.scores = files.layer_scores;
  c.table = files.rows;
  c.texts = files.token_text();
  for (const std::string& budget : budgets) {
    CAPTURE(text, budget);
    c.budget = budget;
    std::vector<LayerKept> kept;
    bool refused = false;
    try {
      kept = test::kept_of(run, {text}, {budget}, c.seed, files);
    } catch (const Error& error) {
      if (error.fault() == Fault::usage) continue;  // a whitelist that does not fit
      refused = true;
    }
    reference::PolicyResult expected;
    try {
      expected = reference::run_policy(c);
    } catch (const std::domain_error&) {
      CHECK(refused);
      continue;
    }
    CHECK_FALSE(refused);
    if (refused) continue;
    if (expected.closest < kTooClose) {
      ++tally.too_close;
      continue;
    }
    ++tally.compared;
    for (size_t l = 0; l < run.layers.size(); ++l) {
      const KeptSets& sets = *kept[l][0][0];
      REQUIRE(sets.owners.size() == expected.layers[l].size());
      for (size_t o = 0; o < sets.owners.size(); ++o) {
        const reference::Head& head = expected.layers[l][o];
        const auto wide = [](const std::vector<uint32_t>& list) {
          return std::vector<int64_t>(list.begin(), list.end());
        };
        CAPTURE(l, o);
        CHECK(wide(sets.owners[o]) == head.kept);
        // A division rounds: what is equal before it need not be equal after it, in either program,
        // as means over a block of 4 and over the 3 entries of the last one.
        if (record.settings.is("normalize", "none") &&
            (record.settings.count("block") == 1 || record.settings.is("block_score", "max")))
          CHECK(sets.tied[o] == head.tied);
        std::vector<uint32_t> sure = sets.guarded[o];
        if (!sets.spread.empty())
          sure.insert(sure.end(), sets.spread[o].begin(), sets.spread[o].end());
        std::ranges::sort(sure);
        if (!head.guarded.empty() || !sure.empty()) CHECK(wide(sure) == head.guarded);
      }
    }
  }
}

std::vector<std::unique_ptr<test::RandomRun>> runs() {
  std::vector<std::unique_ptr<test::RandomRun>> all;
  test::RandomTraceShape shape{
      .query_heads = 4, .kv_heads = 2, .d = 8, .dv = 6, .hidden = 10, .prompt = 29, .later = 5};
  all.push_back(test::random_run(shape, {0, 2, 3}, 5));
  shape.query_heads = 3;  // one KV head serves three
  shape.kv_heads = 1;
  shape.dv = 9;
  shape.prompt = 19;
  shape.sink = true;
  shape.seed = 2;
  all.push_back(test::random_run(shape, {0, 1}, 2));
  shape.query_heads = shape.kv_heads = 2;  // no groups
  shape.prompt = 22;
  shape.sink = false;
  shape.softcap = 2.5;
  shape.seed = 3;
  all.push_back(test::random_run(shape, {1}, 4));
  for (auto& run : all) {
    const int64_t n = run->info.prompt_len;
    run->info.spans = {{"head", 0, n / 4}, {"middle", n / 4, n / 4 + 3}, {"tail", n - 8, n}};
  }
  return all;
}

TEST_CASE("every preset keeps what the naive reference keeps", "[policy]") {
  Tally tally;
  for (const auto& run : runs())
    for (const Preset& preset : presets()) {
      const Settings settings = preset_settings(preset);
      // What steps evict or read and slots have references of their own.
      if (settings.is("schedule", "decode") || settings.is("schedule", "reads") ||
          settings.is("merge", "kvmerger"))
        continue;
      std::string text = preset_title(preset);
      if (settings.is("allocate", "duo")) text += ",table=FILE";
      if (settings.is("indicator", "external")) text += ",scores=FILE";
      compare(*run, text, {"0.5"}, tally);
      if (settings.is("queries", "window") && !settings.is_fraction("window"))
        text += ",window=5";  // 32 is nearly the whole of these prompts
      compare(*run, text, {"0.04", "0.25", "0.87", "1", "19"}, tally);
    }
  CHECK(tally.too_close * 20 < tally.compared);
}

TEST_CASE("what oracles allocate and force by looks ahead as they do", "[policy]") {
  Tally tally;
  for (const auto& run : runs())
    for (const char* record : {"oracle-snapkv,allocate=d2o", "oracle-snapkv,allocate=cake",
                               "oracle-snapkv,stage1=mass,stage1_mass=0.5"})
      compare(*run, record, {"0.25", "7"}, tally);
  CHECK(tally.compared > 9);
}

TEST_CASE("rare records keep what the naive reference keeps, or both refuse them", "[policy]") {
  Tally tally;
  for (const auto& run : runs())
    for (
        const char* record :
        {// Entries that are no candidates have scores, too, which count for nothing.
         "snapkv,indicator=random,allocate=fastgen,class_recovery=0.5,window=0.3",
         // Standardised scores sum to 0 but for rounding.
         "snapkv,indicator=trigonometric,allocate=fastgen,constrain=fair,class_recovery=0.5,"
         "window=4",
         // Ties over layers and heads.
         "streaming,sinks=0,allocate=joint,ada_total=product",
         // The attention that is followed where the indicator scores KV heads.
         "snapkv,indicator=output-change-joint,join=max,smooth=aws-code,window=1,aws_beta=1",
         // Scores are differences: beside the threshold, rounding is that of what they differ by.
         "snapkv,queries=all,indicator=trigonometric,prior=mean-share,allocate=threshold,"
         "constrain=debias,fair_spans=head+tail,threshold_of=mean",
         // Attention that sums to 1 in every head.
         "snapkv,queries=all,aggregate=single,single_row=1,kernel=7,stage1=mass,allocate=lava,"
         "rounding=kvpress,std_keep=0.4",
         // One set for all layers, but of blocks and of those that the record does not skip.
         "snapkv,union=mean,union_layers=yes,block=2",
         "h2o,union=best-rank,union_layers=yes,skip_layers=0,prior=head-mean",
         // Not a number before a stage that would not look at it.
         "snapkv,queries=all,indicator=output-change,aggregate=mean-variance,"
         "redundancy=key-cosine,redundancy_mix=0",
         "snapkv,queries=all,indicator=output-change,memory=decayed-max,union=best-rank",
         "snapkv,queries=all,indicator=output-change,aggregate=mean-variance,smooth=max,union=none,"
         "granularity=query,order=ags,variance_weight=0,kernel=7,block=2,recent=2,std_keep=0.4",
         "snapkv,indicator=external,scores=FILE,redundancy=key-cosine-scaled,union=max,stage1=mass,"
         "allocate=threshold,constrain=none,rounding=kvpress,skip_layers=2,window=5,"
         "redundancy_mix=0.5,redundancy_threshold=0,stage1_mass=0.5,allocate_score=final,"
         "threshold=1.5,threshold_of=mean",
         "snapkv,queries=last,smooth=none,memory=none,redundancy=key-cosine-scaled,prior=head-mean,"
         "stage1=none,allocate=composite,constrain=fair,redundancy_mix=1,whitelist=middle,"
         "recent=0.3,std_keep=0.4,composite_first=lifted",
         // A shorter block at the end.
         "snapkv,queries=last,join=none,group=sum,memory=none,redundancy=key-cosine-scaled,"
         "prior=mean-share,allocate=table,table=FILE,constrain=none,rounding=kvpress,skip_layers=2,"
         "order=gsa,block=4,recent=0.3"})
      compare(*run, record, {"0.04", "0.4", "7"}, tally);
  CHECK(tally.compared > 20);
}

TEST_CASE("Chunked: what is there is compressed as a prompt of it", "[policy]") {
  Tally tally;
  for (const auto& run : runs())
    for (const std::string chunk : {"1", "5", "8", "1000"})
      for (const char* record :
           {"snapkv,window=4", "snapkv,window=4,union=mean", "tova", "keydiff", "knorm", "cur",
            "streaming", "criticalkv,window=3,stage1=none,allocate=uniform", "lagkv,lag_block=4",
            "restkv,window=3,allocate=uniform", "snapkv,window=0.5,first_layer_recent=6"})
        compare(*run, std::string(record) + ",schedule=chunked,chunk=" + chunk,
                {"0.2", "0.5", "7", "13"}, tally);
  CHECK(tally.compared > 300);
  CHECK(tally.too_close * 20 < tally.compared);
}

TEST_CASE("Chunked: a chunk by itself, and chunks that begin at the budget as kvpress's blocks do",
          "[policy]") {
  Tally tally;
  for (const auto& run : runs())
    for (const std::string chunk : {"1", "7", "12", "1000"})
      for (const char* record :
           {"snapkv,window=4", "tova", "keydiff", "knorm,rounding=kvpress", "h2o", "streaming",
            "lagkv,lag_block=4", "snapkv,window=0.5,union=mean", "snapkv,queries=last,smooth=none"})
        for (const char* scope : {"cache", "chunk"}) {
          const std::string text = std::string(record) + ",schedule=chunked,chunk=" + chunk +
                                   ",chunk_scope=" + scope;
          const bool needs_all = text.starts_with("h2o") ||
                                 text.find("queries=last") != std::string::npos;
          if (needs_all && std::string(scope) == "cache") continue;
          compare(*run, text, {"0.2", "0.5", "7", "13"}, tally);
        }
  CHECK(tally.compared > 300);
  CHECK(tally.too_close * 20 < tally.compared);
}

TEST_CASE("Chunked: one chunk is a prompt that comes at once, and what no score chooses stays",
          "[policy]") {
  for (const auto& run : runs())
    for (const auto& [record, chunk] :
         {std::pair("snapkv,window=4", "29"), {"keydiff", "400"}, {"streaming", "3"}}) {
      const auto chunked = test::kept_of(
          *run, {std::string(record) + ",schedule=chunked,chunk=" + chunk}, {"0.3", "9"});
      const auto whole = test::kept_of(*run, {record}, {"0.3", "9"});
      for (size_t l = 0; l < whole.size(); ++l)
        for (size_t b = 0; b < 2; ++b) {
          CAPTURE(record, l, b);
          CHECK(chunked[l][0][b]->owners == whole[l][0][b]->owners);
        }
    }
}

TEST_CASE("Chunked: queries that no capture stored are named before any work", "[policy]") {
  test::RandomTraceShape shape;
  shape.prompt = 29;
  shape.queries = {25, 26, 27, 28, 29, 30};
  const auto run = test::random_run(shape, {0}, 1);
  const test::MadeUpFiles files;
  const auto check = [&](const char* record) {
    check_records({Record::parse(record)}, {Budget::parse("6")}, run->info, {0}, files);
  };
  check("keydiff,schedule=chunked,chunk=8");
  check("snapkv,window=4");
  CHECK_THROWS_WITH(check("snapkv,window=4,schedule=chunked,chunk=8"),
                    Catch::Matchers::Contains("needs queries the trace does not hold") &&
                        Catch::Matchers::Contains("4..7, 12..15, 20..23, 25..28"));
}

TEST_CASE("random records keep what the naive reference keeps", "[policy]") {
  Tally tally;
  const auto all = runs();
  std::vector<std::string> records = test::random_records(test::asked_records(250), 1);
  for (const KindInfo* kind : all_kinds())
    if (test::has_reference(*kind))
      for (std::string& text : test::random_records_with(*kind, 2, 1))
        records.push_back(std::move(text));
  for (size_t at = 0; at < records.size(); ++at)
    compare(*all[at % all.size()], records[at], {"0.04", "0.4", "7"}, tally);
  CHECK(tally.too_close * 20 < tally.compared);
  CHECK(tally.compared > 500);
  if (std::getenv("KVSIM_RECORDS") != nullptr)
    WARN(records.size() << " records, " << tally.compared << " sets compared, " << tally.too_close
                        << " too close");
}

}  // namespace
}  // namespace kvsim
