// What a sweep is made of: units with names and costs, groups of them, and shares of machines.
#include <algorithm>
#include <catch2/catch.hpp>
#include <set>

#include "run/sweep/sweep.hpp"
#include "tests/support/study_case.hpp"

using namespace kvsim;
using namespace kvsim::test;

namespace {

/// Sweeps over one small trace with two layers.
class Sweeps : SynthFolder {
 public:
  Sweeps() : SynthFolder({.prompt = 512, .steps = 64, .hidden = 64}) {}
  /// `policies`: records; each becomes a table of the sweep file.
  SweepPlan plan(const std::vector<std::string>& policies, const std::string& options = "",
                 int64_t shard = 1, int64_t shards = 1) const {
    std::string text = "traces = [\"" + (folder / "t.h5") + "\"]\nbudgets = [0.2, 0.5]\n" +
                       options + "\n";
    for (const std::string& policy : policies) text += "[[policy]]\n" + policy + "\n";
    return SweepPlan(parse_sweep_config(text, "s.toml"), nullptr, folder / "out", shard, shards);
  }
  double seconds(const std::string& policy) const {
    return plan({policy}).jobs().front().seconds.front();
  }
  std::string key(const std::string& policy, const std::string& options = "") const {
    return plan({policy}, options).jobs().front().groups.front().path;
  }
};

const std::string kSnapkv = "preset = \"snapkv\"\nwindow = 8";
const std::string kWindows = "preset = \"snapkv\"\nwindow = [3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13]";

}  // namespace

TEST_CASE("what takes longer is said to cost more", "[sweep]") {
  const Sweeps sweeps;
  const double snapkv = sweeps.seconds(kSnapkv);
  CHECK(snapkv > 0);
  CHECK(sweeps.seconds("preset = \"h2o\"") > snapkv);                    // observes with all
  CHECK(sweeps.seconds("preset = \"restkv\"\nwindow = 8") > snapkv);     // a dear indicator
  CHECK(sweeps.seconds(kSnapkv + "\nmerge = \"convex\"") > 2 * snapkv);  // slot by slot
  CHECK(sweeps.seconds(kSnapkv + "\nquantize = \"per-token\"") > 2 * snapkv);
  CHECK(sweeps.seconds("preset = \"tova:official\"") > 2 * sweeps.seconds("preset = \"tova\""));
}

TEST_CASE("per head and with kept sets results are larger, and memory is", "[sweep]") {
  const Sweeps sweeps;
  const auto memory = [&](const std::string& options) {
    return sweeps.plan({kSnapkv}, options).jobs().front().groups.front().memory;
  };
  CHECK(memory("") > 0);
  for (const char* options : {"per_head = true", "save_keep = true"})
    CHECK(memory(options) > memory(""));
}

TEST_CASE("shards share every unit and none twice, as evenly as groups allow", "[sweep]") {
  const Sweeps sweeps;
  for (const int64_t shards : {1, 2, 3, 7, 40}) {
    CAPTURE(shards);
    std::set<std::pair<std::string, size_t>> seen;
    std::vector<double> loads;
    double dearest = 0;
    for (int64_t shard = 1; shard <= shards; ++shard) {
      double load = 0;
      const SweepPlan plan = sweeps.plan(
          {kWindows, "preset = \"h2o\"\nquantize = [\"none\", \"per-token\"]",
           "preset = \"streaming\"\nsinks = [1, 2, 3, 4, 5, 6, 7, 8, 9]"},
          "seeds = [0, 1]", shard, shards);
      for (const SweepJob& job : plan.jobs())
        for (const SweepGroup& group : job.groups) {
          CHECK(group.units.size() <= 8);
          for (const size_t unit : group.units) CHECK(seen.emplace(job.name, unit).second);
          load += group.seconds;
          dearest = std::max(dearest, group.seconds);
        }
      loads.push_back(load);
    }
    CHECK(seen.size() == 2 * (11 + 2 + 9));
    const auto [least, most] = std::ranges::minmax(loads);
    CHECK(most - least <= dearest * (1 + 1e-12));
  }
}

TEST_CASE("records that quantise are not replayed together with those that do not", "[sweep]") {
  const Sweeps sweeps;
  const SweepPlan plan = sweeps.plan(
      {kSnapkv + "\nquantize = [\"none\", \"per-token\", \"kivi\"]"});
  std::vector<size_t> sizes;
  for (const SweepGroup& group : plan.jobs().front().groups) sizes.push_back(group.units.size());
  CHECK(sizes == std::vector<size_t>{1, 2});
}

TEST_CASE("a group's name follows from everything its numbers depend on", "[sweep]") {
  const Sweeps sweeps;
  const std::string key = sweeps.key(kSnapkv);
  CHECK(key == sweeps.key(kSnapkv));
  std::set<std::string> keys = {key};
  for (const char* option : {"seeds = [7]", "layers = [1]", "per_head = true", "outlier = 0.3",
                             "scope = \"all\"", "metrics = [\"locality\"]", "wo_steps = 2"})
    CHECK(keys.insert(sweeps.key(kSnapkv, option)).second);
  CHECK(keys.insert(sweeps.key("preset = \"snapkv\"\nwindow = 9")).second);
  CHECK(keys.insert(sweeps.plan({kSnapkv, "preset = \"tova\""}).jobs()[0].groups[0].path).second);
}
