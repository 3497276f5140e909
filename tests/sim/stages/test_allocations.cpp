// Budgets per head and layer (policies.md 3 and 7), on paper.
#include <catch2/catch.hpp>

#include "sim/stages/allocate/allocate.hpp"
#include "tests/support/small_run.hpp"

namespace kvsim {
namespace {

using Counts = std::vector<int64_t>;

TEST_CASE("apportion divides by largest remainder, ties to the lower index", "[stages]") {
  CHECK(apportion(10, {1, 1, 1}, 100) == Counts{4, 3, 3});  // 10/3 each
  CHECK(apportion(7, {3, 2, 2}, 100) == Counts{3, 2, 2});   // exact
  CHECK(apportion(5, {5, 3, 2}, 100) == Counts{3, 1, 1});   // 2.5, 1.5, 1: tie to the first
  CHECK(apportion(4, {0, 0}, 100) == Counts{2, 2});         // all weights zero: equal
  CHECK(apportion(0, {1, 2}, 100) == Counts{0, 0});
}

TEST_CASE("apportion fixes what is above its cap and divides the rest again", "[stages]") {
  // 10 over (8,1,1): quotas 8, 1, 1; capped at 5; the other 5 go to two equal weights: 3 and 2.
  CHECK(apportion(10, {8, 1, 1}, 5) == Counts{5, 3, 2});
  CHECK(apportion(30, {8, 1, 1}, 5) == Counts{5, 5, 5});  // more than all caps together
  CHECK(apportion_exact(7, {4, 2, 1}, {3, 2, 1}) == Counts{3, 2, 1});
}

/// Budgets of layers `layers` of a model with `model_layers`, two owners, no scores needed.
std::vector<Counts> by_layer(const std::string& changes, int64_t budget, int64_t entries,
                             int64_t window, const std::vector<int>& layers, int model_layers) {
  const Settings settings = test::settings_with(changes);
  AllocationRequest request;
  request.settings = &settings;
  request.budget = budget;
  request.ratio = Decimal(budget);
  request.budget_is_count = true;
  request.entries = entries;
  request.window = window;
  request.owners = 2;
  request.model_layers = model_layers;
  for (const int layer : layers) {
    AllocationLayer one;
    one.layer = layer;
    request.layers.push_back(one);
  }
  const Table<int64_t> b = Kinds<Allocate>::find(settings.text("allocate")).budgets(request);
  std::vector<Counts> rows;
  for (int64_t l = 0; l < b.rows(); ++l) rows.emplace_back(b.row(l).begin(), b.row(l).end());
  return rows;
}

TEST_CASE("uniform gives every head B", "[stages]") {
  CHECK(by_layer("allocate=uniform", 6, 20, 2, {0, 3}, 4) == std::vector<Counts>{{6, 6}, {6, 6}});
}

TEST_CASE("the pyramid falls linearly with depth and keeps the window on top", "[stages]") {
  // PyramidKV Eq. 3: c = 12 - 2 = 10, lo = floor(10/5) = 2, hi = 18 < n - m, step (18-2)/4 = 4.
  CHECK(by_layer("allocate=pyramid,pyramid_beta=5", 12, 100, 2, {0, 1, 4}, 5) ==
        std::vector<Counts>{{20, 20}, {16, 16}, {4, 4}});
}

TEST_CASE("a pyramid that exceeds the prompt is cut at its base and raised at its top",
          "[stages]") {
  // c = 10, lo = 2, hi = 18 >= n - m = 15: hi = 15, lo = 5, step floor(10/4) = 2.
  CHECK(by_layer("allocate=pyramid,pyramid_beta=5", 12, 21, 6 - 4, {0, 4}, 5) ==
        std::vector<Counts>{{20, 20}, {4, 4}});
  CHECK(by_layer("allocate=pyramid,pyramid_beta=5", 12, 20, 5, {0, 4}, 5)[0] == Counts{18, 18});
}

TEST_CASE("the pyramid is uniform without free places, with short prompts and with one layer",
          "[stages]") {
  const std::vector<Counts> flat = {{12, 12}, {12, 12}};
  CHECK(by_layer("allocate=pyramid", 12, 100, 12, {0, 1}, 2) == flat);  // c = 0
  CHECK(by_layer("allocate=pyramid", 12, 19, 2, {0, 1}, 2) == flat);    // n < 2c
  CHECK(by_layer("allocate=pyramid", 12, 100, 2, {0}, 1) == std::vector<Counts>{{12, 12}});
}

TEST_CASE("kvpress's pyramid has the window inside and rounds half to even", "[stages]") {
  // c = 10, lo = 10/4 = 5/2, hi = 35/2, step 5: 17.5 -> 18, 12.5 -> 12, 7.5 -> 8, 2.5 -> 2.
  CHECK(by_layer("allocate=pyramid-kvpress,pyramid_beta=4", 10, 100, 1, {0, 1, 2, 3}, 4) ==
        std::vector<Counts>{{18, 18}, {12, 12}, {8, 8}, {2, 2}});
  // lo = 5/2 is below the window of 3: uniform.
  CHECK(by_layer("allocate=pyramid-kvpress,pyramid_beta=4", 10, 100, 3, {0, 3}, 4) ==
        std::vector<Counts>{{10, 10}, {10, 10}});
}

TEST_CASE("the cosine profile spends the exact total of the layers that are replayed", "[stages]") {
  // PyramidInfer: phi = 0, L = 2: f = 1 and 1/2 (cos 0, cos pi/2): weights 1 and 0.6; 2 * 8 = 16
  // divides as 10 and 6.
  CHECK(by_layer("allocate=cosine,cosine_floor=0", 8, 100, 2, {0, 1}, 2) ==
        std::vector<Counts>{{10, 10}, {6, 6}});
  // Capped at n = 9, the other gets the rest.
  CHECK(by_layer("allocate=cosine,cosine_floor=0", 8, 9, 2, {0, 1}, 2) ==
        std::vector<Counts>{{9, 9}, {7, 7}});
}

/// Two KV heads, n = 5, window 1: A = (12,8,7,2)/32 and (2,6,3,12)/64; in 64ths the layer's
/// candidates are 24, 16, 14, 12, 6, 4, 3, 2.
test::SmallRun two_heads() {
  test::SmallRun small;
  small.prompt = 5;
  small.query_heads = small.kv_heads = 2;
  small.weights = {{{12, 8, 7, 2, 3}}, {{2, 6, 3, 12, 41}}};
  return small;
}

std::vector<size_t> sizes(const test::SmallRun& small, const std::string& record,
                          const std::string& budget) {
  const auto run = small.build();
  std::vector<size_t> result;
  for (int64_t owner = 0; owner < 2; ++owner)
    result.push_back(test::kept_entries(*run, record, budget, owner).size());
  return result;
}

/// Layer 0 as above; in layer 1 both heads give their candidates (1,2,3,4)/1000.
std::unique_ptr<test::RandomRun> strong_and_weak_layer() {
  test::SmallRun small = two_heads();
  small.layers = {0, 1};
  auto run = small.build();
  small.weights = {{{1, 2, 3, 4, 990}}, {{1, 2, 3, 4, 990}}};
  run->layers[1].q = std::move(small.build()->layers[1].q);
  return run;
}

const std::string kOne = "snapkv,window=1,smooth=none,";

TEST_CASE("ada lets the heads of a layer compete for its total", "[stages]") {
  // AdaKV Algorithm 1, B = 3, floor 0: both windows are marked; 4 of the rest: 24, 16, 14 of
  // head 0 and 12 of head 1.
  CHECK(sizes(two_heads(), kOne + "allocate=ada,ada_floor=0", "3") == std::vector<size_t>{4, 2});
  // Floor 1 leaves nothing to compete for.
  CHECK(sizes(two_heads(), kOne + "allocate=ada,ada_floor=1", "3") == std::vector<size_t>{3, 3});
}

TEST_CASE("ada marks at least what is protected and is uniform when that fills B", "[stages]") {
  CHECK(sizes(two_heads(), kOne + "allocate=ada,ada_floor=0,sinks=2", "3") ==
        std::vector<size_t>{3, 3});
}

TEST_CASE("ada's product total has the entries that floors of single heads lose", "[stages]") {
  // n = 5, rho = 0.5: B = 2, two heads: 4; floor(5 * 0.5 * 2) = 5.
  CHECK(sizes(two_heads(), kOne + "allocate=ada,ada_floor=0", "0.5") == std::vector<size_t>{3, 1});
  CHECK(sizes(two_heads(), kOne + "allocate=ada,ada_floor=0,ada_total=product", "0.5") ==
        std::vector<size_t>{4, 1});
}

TEST_CASE("ada-interpolate mixes the layer's best with a floor and rounds half to even",
          "[stages]") {
  // AdaKV code: c = 3 - 1 = 2; best 4 of the layer: 3 in head 0, 1 in head 1.
  // Floor 1/2: 1 + round(3/2 + 1) = 1 + 2 (2.5 to even); 1 + round(1/2 + 1) = 1 + 2 (1.5 to even).
  CHECK(sizes(two_heads(), kOne + "allocate=ada-interpolate,ada_floor=0.5", "3") ==
        std::vector<size_t>{3, 3});
  // Floor 0: 1 + 3 and 1 + 1.
  CHECK(sizes(two_heads(), kOne + "allocate=ada-interpolate,ada_floor=0", "3") ==
        std::vector<size_t>{4, 2});
}

TEST_CASE("joint lets all layers compete", "[stages]") {
  // DefensiveKV Algorithm 2, B = 2: four windows are sure; 24, 16, 14, 12 of layer 0 are better
  // than anything of layer 1.
  const auto run = strong_and_weak_layer();
  using Entries = std::vector<int>;
  const std::string record = kOne + "allocate=joint";
  CHECK(test::kept_entries(*run, record, "2", 0, 0) == Entries{0, 1, 2, 4});
  CHECK(test::kept_entries(*run, record, "2", 1, 0) == Entries{3, 4});
  CHECK(test::kept_entries(*run, record, "2", 0, 1) == Entries{4});
  CHECK(test::kept_entries(*run, record, "2", 1, 1) == Entries{4});
}

TEST_CASE("deeper layers count less in a joint competition when the record says so", "[stages]") {
  // Scores of layer 1 of 2 count exp(-a/2) times; at a = 40 next to nothing of them is left, and
  // with layers of equal scores the earlier one takes all that is free.
  test::SmallRun small = two_heads();
  small.layers = {0, 1};
  const auto run = small.build();
  const auto kept = [&](const std::string& record, size_t layer) {
    return test::kept_entries(*run, record, "3", 0, layer).size() +
           test::kept_entries(*run, record, "3", 1, layer).size();
  };
  const std::string record = kOne + "allocate=joint";
  CHECK(kept(record, 0) == kept(record, 1));
  CHECK(kept(record + ",joint_depth=40", 0) == 10);
  CHECK(kept(record + ",joint_depth=40", 1) == 2);
}

TEST_CASE(
    "layers of a long residual stream count less in a joint competition if the record says so",
    "[stages]") {
  // Streams of 1 and 100: layer 0 is divided by sqrt(1 * 100), layer 1 by 100, so that scores of
  // layer 1 count a tenth. Its best two, 24 and 16 in units of the least, stay above the least of
  // layer 0 only while the power is small.
  test::SmallRun small = two_heads();
  small.layers = {0, 1};
  const auto run = small.build();
  const std::string record = kOne + "allocate=joint,joint_stream=";
  CHECK_THROWS_WITH(test::kept_entries(*run, record + "1", "3", 0, 0),
                    Catch::Contains("weighs layers by the residual stream") &&
                        Catch::Contains("no residual_norm"));
  run->info.has_residual_norm = true;
  for (size_t l = 0; l < 2; ++l)
    run->layers[l].residual_norm.assign(run->info.query_position.size(), l == 0 ? 1.0f : 100.0f);
  const auto kept = [&](const std::string& power, size_t layer) {
    return test::kept_entries(*run, record + power, "3", 0, layer).size() +
           test::kept_entries(*run, record + power, "3", 1, layer).size();
  };
  CHECK(kept("0", 0) == kept("0", 1));
  CHECK(kept("1", 0) > kept("1", 1));
  CHECK(kept("40", 0) == 10);
  CHECK(kept("40", 1) == 2);
}

TEST_CASE("with layer-max a layer of low scores loses even what it protects", "[stages]") {
  // DefensiveKV code: the windows of layer 0 have 24, those of layer 1 4/1000: the 8 places go to
  // layer 0: two windows and 24, 16, 14, 12, 6, 4.
  const auto run = strong_and_weak_layer();
  using Entries = std::vector<int>;
  const std::string record = kOne + "allocate=joint,protected_rank=layer-max";
  CHECK(test::kept_entries(*run, record, "2", 0, 0) == Entries{0, 1, 2, 3, 4});
  CHECK(test::kept_entries(*run, record, "2", 1, 0) == Entries{1, 3, 4});
  CHECK(test::kept_entries(*run, record, "2", 0, 1).empty());
  // One place more per head (12 in all): 3 and 2 of layer 0, then the windows of layer 1.
  CHECK(test::kept_entries(*run, record, "3", 0, 1) == Entries{4});
  CHECK(test::kept_entries(*run, record, "3", 1, 1) == Entries{4});
  // With a sink, too, layer 0 takes 4 protected entries and its 6 candidates; of the sink and the
  // window in layer 1 the newer one wins the last place of each head.
  CHECK(test::kept_entries(*run, record + ",sinks=1", "3", 0, 1) == Entries{4});
}

TEST_CASE("cake divides by entropy and variance and is uniform without free places", "[stages]") {
  // CAKE Eq. 5: equal layers get equal shares: 2 layers, m = 1, B = 3: 1 + 2 each.
  test::SmallRun small = two_heads();
  small.layers = {0, 1};
  const auto run = small.build();
  for (size_t layer = 0; layer < 2; ++layer)
    CHECK(test::kept_entries(*run, "cake,window=1,smooth=none", "3", 0, layer).size() == 3);
  CHECK(test::kept_entries(*run, "cake,window=1", "1", 0, 1) == std::vector<int>{4});
}

TEST_CASE("d2o gives more to layers whose attention is spread evenly over the heads", "[stages]") {
  // D2O Eq. 4-5: one layer takes everything, whatever F is; B = 3.
  CHECK(sizes(two_heads(), kOne + "allocate=d2o", "3") == std::vector<size_t>{3, 3});
}

test::MadeUpFiles table(const std::vector<double>& row) {
  test::MadeUpFiles files;
  files.rows = Table<double>(1, static_cast<int64_t>(row.size()));
  files.rows.values() = row;
  return files;
}

TEST_CASE("duo makes as many heads of low gate stream as the budget asks", "[stages]") {
  // DuoAttention: sinks 1 + recent 1 = 2 entries for a streaming head; total 2 * 3 = 6 < 2 + 5,
  // so both stream; at B = 4, one does: the one with the lower gate.
  const auto run = two_heads().build();
  const std::string record = "duo,table=F,sinks=1,recent=1";
  const auto files = table({0.9, 0.4});
  const std::vector<int> all = {0, 1, 2, 3, 4}, few = {0, 4};
  CHECK(test::kept_entries(*run, record, "3", 0, 0, files) == few);
  CHECK(test::kept_entries(*run, record, "4", 0, 0, files) == all);
  CHECK(test::kept_entries(*run, record, "4", 1, 0, files) == few);
  // Gates are clipped to [0, 1]: 1.7 and 1 tie, the lower head streams first.
  CHECK(test::kept_entries(*run, record, "4", 0, 0, table({1.7, 1})) == few);
  // A share of heads: round half even(0.25 * 2) = 0, (0.75 * 2) = 2.
  CHECK(test::kept_entries(*run, record + ",streaming_share=0.25", "3", 1, 0, files) == all);
  CHECK(test::kept_entries(*run, record + ",streaming_share=0.75", "3", 0, 0, files) == few);
}

TEST_CASE("a table of budgets counts whatever the budget is, but never beyond the prompt",
          "[stages]") {
  const auto run = two_heads().build();
  const std::string record = kOne + "allocate=table,table=F";
  CHECK(test::kept_entries(*run, record, "1", 0, 0, table({2, 9})) == std::vector<int>{0, 4});
  CHECK(test::kept_entries(*run, record, "1", 1, 0, table({2, 9})).size() == 5);
  // With B >= n nothing is evicted, by table neither.
  CHECK(test::kept_entries(*run, record, "5", 0, 0, table({2, 9})).size() == 5);
}

}  // namespace
}  // namespace kvsim
