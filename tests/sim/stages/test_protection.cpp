// Protection, forced entries, constraints and ties (policies.md 6, 8, 10), on paper.
#include <catch2/catch.hpp>

#include "sim/stages/stages.hpp"
#include "tests/reference/reference.hpp"
#include "tests/support/random_run.hpp"
#include "tests/support/small_run.hpp"

namespace kvsim {
namespace {

using Entries = std::vector<int>;

/// One head, n = 8, window 1; the query at 7 gives the weights 1 to 7 in the order 4 7 1 5 2 6 3.
test::SmallRun eight() {
  test::SmallRun small;
  small.prompt = 8;
  small.weights = {{{4, 7, 1, 5, 2, 6, 3, 4}}};
  small.spans = {{"a", 1, 3}, {"b", 4, 7}};
  return small;
}

Entries kept(const std::string& changes, const std::string& budget) {
  return test::kept_entries(*eight().build(), "snapkv,smooth=none,window=1" + changes, budget);
}

TEST_CASE("protected entries come before any score", "[stages]") {
  CHECK(kept("", "3") == Entries{1, 5, 7});
  CHECK(kept(",sinks=1", "3") == Entries{0, 1, 7});
  CHECK(kept(",recent=2", "3") == Entries{1, 6, 7});       // the window is one of the two
  CHECK(kept(",recent=0.7", "4") == Entries{1, 5, 6, 7});  // floor(2.8) = 2 of them
}

TEST_CASE("the first layer may protect more of the newest than the others", "[stages]") {
  test::SmallRun small = eight();
  small.layers = {0, 1};
  const auto run = small.build();
  const auto in_layer = [&](const std::string& changes, int layer) {
    return test::kept_entries(*run, "snapkv,smooth=none,window=1" + changes, "4", 0, layer);
  };
  CHECK(in_layer(",first_layer_recent=3", 0) == Entries{1, 5, 6, 7});
  CHECK(in_layer(",first_layer_recent=3", 1) == Entries{1, 3, 5, 7});
  CHECK(in_layer(",first_layer_recent=0.99", 0) == Entries{1, 5, 6, 7});  // floor(3.96)
  CHECK(in_layer(",recent=4,first_layer_recent=3", 0) == Entries{4, 5, 6, 7});
}

TEST_CASE("what does not fit is granted whitelist first, then sinks, then the newest", "[stages]") {
  CHECK(kept(",sinks=4,recent=3", "5") == Entries{0, 1, 2, 3, 7});
  CHECK(kept(",sinks=4,recent=3", "2") == Entries{0, 1});
  CHECK(kept(",sinks=4,whitelist=b", "4") == Entries{0, 4, 5, 6});
  CHECK(kept(",whitelist=2-4", "3") == Entries{2, 3, 7});
  // StreamingLLM with B <= 4 keeps positions 0..B-1; SnapKV with B <= window the last B.
  CHECK(test::kept_entries(*eight().build(), "streaming", "3") == Entries{0, 1, 2});
  CHECK(test::kept_entries(*eight().build(), "streaming", "6") == Entries{0, 1, 2, 3, 6, 7});
  test::SmallRun wide = eight();
  wide.positions = {6, 7, 8};
  CHECK(test::kept_entries(*wide.build(), "snapkv,window=2", "2") == Entries{6, 7});
  CHECK(test::kept_entries(*wide.build(), "snapkv,window=2", "1") == Entries{7});
}

TEST_CASE("std_keep protects the unprotected entries of largest deviation", "[stages]") {
  // RoCo: floor(0.75 * 4) - 1 recent = 2 entries.
  const Settings settings = test::settings_with("std_keep=0.75,recent=1");
  const std::vector<Range> whitelist;
  const std::vector<double> deviation = {3, 9, 9, 1, 100};
  const std::vector<uint8_t> candidate = {1, 1, 1, 1, 1};
  ProtectRequest request;
  request.settings = &settings;
  request.whitelist = &whitelist;
  request.range = {0, 5};
  request.budget = 4;
  request.deviation = deviation;
  request.candidate = candidate;
  CHECK(protected_entries(request) == std::vector<uint32_t>{4, 2, 1});  // tie: more recent first
}

TEST_CASE("the deviation is over the queries that see the entry", "[stages]") {
  // RoCo: queries 0, 1, 2 of n = 3 with A(0): 1, 1/2, 0; A(1): 1/2, 1/2; A(2): 1/2.
  // Entry 0: mean 1/2, mean of squares 5/12: sqrt(1/6); entries 1 and 2 have none.
  test::SmallRun small;
  small.prompt = 3;
  small.positions = {0, 1, 2, 3};
  small.weights = {{{1}, {1, 1}, {0, 1, 1}}};
  const auto scored = test::scores_of(*small.build(), "roco,sinks=0,recent=0", "2");
  CHECK(scored->deviation(0, 0) == Approx(std::sqrt(1.0 / 6)).epsilon(1e-6));
  CHECK(scored->deviation(0, 1) == Approx(0).margin(1e-6));
  CHECK(scored->deviation(0, 2) == Approx(0).margin(1e-6));
}

TEST_CASE("deviations of a long prompt are those of the heads that share an owner", "[stages]") {
  // more columns than one task takes
  const auto run = test::random_run(
      {.prompt = 1100, .later = 1, .queries = {1095, 1096, 1097, 1098, 1099, 1100}}, {0}, 1);
  const LayerTrace& layer = run->layers[0];
  std::vector<std::vector<std::vector<double>>> a(4);  // [head][query][entry]
  for (int head = 0; head < 4; ++head)
    for (int64_t row = 0; row < 5; ++row)
      a[static_cast<size_t>(head)].push_back(
          reference::attention(layer, head, reference::logits(layer, head, row)).weight);
  const std::vector<std::pair<std::string, std::vector<std::vector<size_t>>>> cases = {
      {"group=mean", {{0, 1}, {2, 3}}},
      {"group=layer-mean", {{0, 1, 2, 3}, {0, 1, 2, 3}}},
      {"group=none,granularity=query", {{0}, {1}, {2}, {3}}}};
  for (const auto& [change, heads_of] : cases) {
    CAPTURE(change);
    const auto scored = test::scores_of(
        *run, "snapkv,window=5,smooth=none,order=gas,std_keep=0.1," + change, "100");
    for (size_t owner = 0; owner < heads_of.size(); ++owner)
      for (size_t i = 0; i < 1095; ++i) {
        double sum = 0, squares = 0;
        for (size_t row = 0; row < 5; ++row) {
          double x = 0;
          for (const size_t head : heads_of[owner])
            x += a[head][row][i] / static_cast<double>(heads_of[owner].size());
          sum += x / 5;
          squares += x * x / 5;
        }
        const double want = std::sqrt(std::max(0.0, squares - sum * sum));
        CHECK(scored->deviation(static_cast<int64_t>(owner), static_cast<int64_t>(i)) ==
              Approx(want).epsilon(1e-3).margin(1e-9));
      }
  }
}

TEST_CASE("stage1=ratio forces the best by attention, protected entries counted in", "[stages]") {
  // CriticalKV Algorithm 1, b = 4, half of it: the window and entry 1 (weight 7). The other two by
  // A ||v||: values make entries 2 and 4 (weights 1, 2) worth 100 and 200.
  test::SmallRun small = eight();
  small.values = {{{1}, {1}, {100}, {1}, {100}, {1}, {1}, {1}}};
  const auto run = small.build();
  const std::string record = "criticalkv,smooth=none,window=1,weight_epsilon=0,stage1_ratio=";
  CHECK(test::kept_entries(*run, record + "0.5", "4") == Entries{1, 2, 4, 7});
  CHECK(test::kept_entries(*run, record + "0.75", "4") == Entries{1, 4, 5, 7});
  CHECK(test::kept_entries(*run, record + "0", "3") == Entries{2, 4, 7});
}

TEST_CASE("stage1=mass forces the entries that hold a share of the head's attention", "[stages]") {
  // DefensiveKV code: A(0..6) = (4,7,1,5,2,6,3)/32 of a total 28/32: p = 7/28, 6/28, 5/28, 4/28...
  // theta = 0.7 - A of the last m = 1 candidates (3/32) = 0.606: prefix sums 7/28 = 0.25,
  // 13/28 = 0.46 and 18/28 = 0.64: two are forced. The cap floor(7 * 4/8 - 1) = 2 allows them.
  test::SmallRun small = eight();
  small.values = {{{1}, {0}, {1}, {1}, {1}, {0}, {1}, {1}}};  // their importance is 0
  const auto run = small.build();
  const std::string record = "snapkv,smooth=none,window=1,weight=value-l1,stage1=mass,stage1_mass=";
  CHECK(test::kept_entries(*run, record + "0.7", "4") == Entries{1, 3, 5, 7});
  // Less than the first entry's share: none. 0.3 - 0.094 = 0.206 < 0.25.
  CHECK(test::kept_entries(*run, record + "0.3", "4") == Entries{0, 3, 6, 7});
  // stage1_bias=window takes off the query's own 4/32: 0.37 - 0.125 = 0.245 < 0.25 <= 0.276.
  CHECK(test::kept_entries(*run, record + "0.37", "4") == Entries{0, 1, 3, 7});
  CHECK(test::kept_entries(*run, record + "0.37,stage1_bias=window", "4") == Entries{0, 3, 6, 7});
}

std::vector<int64_t> shares(const std::string& changes, int64_t b, std::vector<int64_t> sizes,
                            int64_t sinks = 0, std::vector<int64_t> unconstrained = {}) {
  const Settings settings = test::settings_with(changes);
  const ShareRequest request{.budget = b,
                             .sinks = sinks,
                             .sizes = std::move(sizes),
                             .unconstrained = std::move(unconstrained),
                             .position = settings.is("indicator", "position")};
  return Kinds<Constrain>::find(settings.text("constrain")).shares(settings, request);
}
using Shares = std::vector<int64_t>;

TEST_CASE("fair shares are floors by size and the last segment takes the rest", "[stages]") {
  // Pitfalls Algorithm 1: 7 * (3, 3, 4)/10 = 2.1, 2.1, 2.8.
  CHECK(shares("constrain=fair", 7, {3, 3, 4}) == Shares{2, 2, 3});
  CHECK(shares("constrain=fair,fair_rounding=remainder", 7, {3, 3, 4}) == Shares{2, 2, 3});
  CHECK(shares("constrain=fair,fair_rounding=remainder", 5, {3, 3, 4}) == Shares{2, 1, 2});
  // 6 * (3,3,1)/7: 2, 2 and 2 for a segment of one: the excess goes to the one before.
  CHECK(shares("constrain=fair", 6, {3, 3, 1}) == Shares{2, 3, 1});
}

TEST_CASE("with positions the sinks are taken off first and shares are rounded half up",
          "[stages]") {
  // Appendix F.3: b = 7, 2 sinks of the first segment (4): 5 over (2, 4): 5/3 -> 2, the rest 3.
  CHECK(shares("constrain=fair,indicator=position", 7, {4, 4}, 2) == Shares{4, 3});
  // 5 * 1/2 = 2.5 is rounded up.
  CHECK(shares("constrain=fair,indicator=position", 5, {4, 4}) == Shares{3, 2});
}

TEST_CASE("debias lies between the unconstrained and the fair division", "[stages]") {
  // Appendix G: fair of b = 4 over (4, 4) is 2; unconstrained 1: lambda 1/2: round half up(1.5).
  CHECK(shares("constrain=debias", 4, {4, 4}, 0, {1, 3}) == Shares{2, 2});
  CHECK(shares("constrain=debias,debias_lambda=0", 4, {4, 4}, 0, {1, 3}) == Shares{1, 3});
  CHECK(shares("constrain=debias,debias_lambda=1", 4, {4, 4}, 0, {1, 3}) == Shares{2, 2});
  // Fair 3 of b = 6, unconstrained 4: 3.5 is rounded up, back to 4.
  CHECK(shares("constrain=debias", 6, {4, 4}, 0, {4, 2}) == Shares{4, 2});
}

TEST_CASE("fair keeps a share of each segment, ranked inside it", "[stages]") {
  // Spans a (1..3) and b (4..7) cut at 4: segments 0..3 and 4..7; window 1 of each: max(1, 0).
  // B = 4: two each; segment 0: its own last entry 3 observes and is protected; scores are
  // those of query 3, which all give 0 here but for weight on 2.
  test::SmallRun small = eight();
  small.positions = {3, 7, 8};
  small.weights = {{{1, 2, 9, 4}, {4, 7, 1, 5, 2, 6, 3, 4}}};
  const auto run = small.build();
  const std::string record = "snapkv,smooth=none,window=1,constrain=fair";
  CHECK(test::kept_entries(*run, record, "4") == Entries{2, 3, 5, 7});
  // fair_scores=default: the prompt's own scores and window; only the ranking is per segment.
  CHECK(test::kept_entries(*run, record + ",fair_scores=default", "4") == Entries{1, 3, 5, 7});
  // debias with lambda 0 is the unconstrained record, with 1 the fair one.
  const std::string debias = "snapkv,smooth=none,window=1,constrain=debias,debias_lambda=";
  CHECK(test::kept_entries(*run, debias + "0", "4") ==
        test::kept_entries(*run, "snapkv,smooth=none,window=1", "4"));
  CHECK(test::kept_entries(*run, debias + "1", "4") == Entries{2, 3, 5, 7});
}

TEST_CASE("queries of other segments see nothing in a segment but count among the queries",
          "[stages]") {
  // h2o's sum over the block diagonal: segments 0..1 and 2..3. Query 3 gives entry 0 everything
  // (weight 100), but stands in the other segment.
  test::SmallRun small;
  small.prompt = 4;
  small.positions = {0, 1, 2, 3, 4};
  small.weights = {{{1}, {1, 3}, {0, 0, 1}, {100, 0, 1, 3}}};
  small.spans = {{"a", 0, 2}, {"b", 2, 4}};
  const auto run = small.build();
  // a: entry 0: 1 + 1/4, entry 1: 3/4. b: entry 2: 1 + 1/104, entry 3: 3/104.
  const auto sum = test::scores_of(*run, "h2o,constrain=fair,aggregate=sum", "2");
  const double hundred = 1.0 / 104;
  for (const auto& [i, expected] : std::vector<std::pair<int, double>>{
           {0, 1.25}, {1, 0.75}, {2, 1 + hundred}, {3, 3 * hundred}})
    CHECK(sum->score(0, i) == Approx(expected).epsilon(1e-5));
  // The newest row stands in b: in a nothing is left of it.
  const auto last = test::scores_of(*run, "h2o,constrain=fair,aggregate=last", "2");
  CHECK(last->score(0, 0) == 0);
  CHECK(last->score(0, 1) == 0);
  CHECK(last->score(0, 3) == Approx(3 * hundred).epsilon(1e-5));
  // The mean is over all four queries.
  const auto mean = test::scores_of(*run, "h2o,constrain=fair,aggregate=mean", "2");
  CHECK(mean->score(0, 0) == Approx(1.25 / 4).epsilon(1e-5));
}

TEST_CASE("equal scores are decided by the score without its prior, then by recency, and counted",
          "[stages]") {
  // DefensiveKV Algorithm 1: the mean of 3.5 7 1 5 2.5 6 3 is 4: entries 0, 2, 4, 6 tie there.
  // One place is left for them: tie=raw gives it to 0 (3.5), tie=recent to 6.
  test::SmallRun small = eight();
  small.weights = {{{3.5, 7, 1, 5, 2.5, 6, 3, 4}}};
  const auto run = small.build();
  const std::string record = "snapkv,smooth=none,window=1,prior=head-mean";
  CHECK(test::kept_entries(*run, record, "5") == Entries{0, 1, 3, 5, 7});
  CHECK(test::kept_entries(*run, record + ",tie=recent", "5") == Entries{1, 3, 5, 6, 7});
  const auto kept = test::kept_of(*run, {record}, {"5", "4", "1"});
  CHECK(kept[0][0][0]->tied[0] == 4);  // 0, 2, 4, 6
  CHECK(kept[0][0][1]->tied[0] == 1);  // entry 3 alone
  CHECK(kept[0][0][2]->tied[0] == 0);  // only the window was kept
}

TEST_CASE("nested layers choose among what the layer before kept", "[stages]") {
  // PyramidInfer: all layers are equal here, so nesting changes nothing; the first layer is skipped
  // in the second record and keeps everything.
  test::SmallRun small = eight();
  small.layers = {0, 1};
  const auto run = small.build();
  const std::string record = "tova,nested=yes";
  CHECK(test::kept_entries(*run, record, "3", 0, 1) == Entries{1, 5, 7});
  CHECK(test::kept_entries(*run, record + ",skip_layers=0", "3", 0, 0).size() == 8);
  CHECK(test::kept_entries(*run, record + ",skip_layers=0", "3", 0, 1) == Entries{1, 5, 7});
}

TEST_CASE("a skipped layer is not scored: neither its queries nor its file are asked for",
          "[stages]") {
  test::SmallRun small = eight();
  small.positions = {8};  // no query of the prompt
  small.weights = {{{1, 1, 1, 1, 1, 1, 1, 1, 1}}};
  const auto run = small.build();
  CHECK(test::kept_entries(*run, "h2o,skip_layers=0", "3").size() == 8);
  CHECK_THROWS(test::kept_of(*run, {"h2o"}, {"3"}));
  small = eight();
  small.layers = {0, 1};
  test::MadeUpFiles files;  // holds layer 0 alone
  files.layer_scores[0] = Table<double>(1, 8, 1.0);
  for (const char* record :
       {"external,scores=F,skip_layers=1", "external,scores=F,skip_layers=1,allocate=ada",
        "external,scores=F,skip_layers=1,allocate=joint"}) {
    CHECK(test::kept_entries(*small.build(), record, "3", 0, 0, files).size() == 3);
    CHECK(test::kept_entries(*small.build(), record, "3", 0, 1, files).size() == 8);
  }
  CHECK_THROWS(test::kept_of(*small.build(), {"external,scores=F"}, {"3"}, 0, files));
}

TEST_CASE("a span in another one cuts no segment unless it is named", "[stages]") {
  const std::vector<Span> spans = {{"a", 1, 6}, {"phrase", 2, 4}, {"b", 6, 9}};
  const auto starts = [&](const std::string& changes) {
    const Settings settings = test::settings_with("constrain=fair" + changes);
    std::vector<int64_t> found;
    for (const Range& range : Kinds<Constrain>::find("fair").segments(settings, spans, 10))
      found.push_back(range.begin);
    return found;
  };
  CHECK(starts("") == std::vector<int64_t>{0, 6});
  CHECK(starts(",fair_spans=a+phrase+b") == std::vector<int64_t>{0, 2, 6});
}

}  // namespace
}  // namespace kvsim
