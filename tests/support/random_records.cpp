#include "tests/support/random_records.hpp"

#include <map>
#include <set>

#include "sim/core/error.hpp"
#include "sim/core/random.hpp"
#include "sim/policy/record.hpp"
#include "sim/policy/record_rules.hpp"
#include "sim/stages/kind.hpp"
#include "sim/stages/parameter.hpp"

namespace kvsim::test {
namespace {

class Dice {
 public:
  explicit Dice(uint64_t seed) : seed_(seed) {}
  double roll() { return uniform(seed_, 77, at_++, 3); }
  template <class T>
  const T& pick(const std::vector<T>& from) {
    return from[static_cast<size_t>(roll() * static_cast<double>(from.size()))];
  }

 private:
  uint64_t seed_;
  uint64_t at_ = 0;
};

/// Values to try of the parameters that are no kinds; keys that are missing keep their value.
const std::map<std::string, std::vector<std::string>> kValues = {
    {"tie", {"recent"}},
    {"rounding", {"kvpress"}},
    {"skip_layers", {"2"}},
    {"order", {"asg", "ags", "sag", "sga", "gas", "gsa"}},
    {"window", {"1", "2", "5", "9", "0.25", "0.5"}},
    {"last_queries", {"1", "3", "11", "100"}},
    {"spread_queries", {"1", "7", "100"}},
    {"lag_block", {"2", "5", "7"}},
    {"rehearsal_steps", {"1", "6", "100"}},
    {"single_row", {"0", "1"}},
    {"ema_alpha", {"0.1", "0.55", "1"}},
    {"linear_newest", {"0.3", "2.5"}},
    {"variance_weight", {"0", "3"}},
    {"power", {"1", "2", "5"}},
    {"kernel", {"1", "3", "7"}},
    {"aws_beta", {"0.25", "0.93", "1", "2", "2.71", "7.3"}},
    {"aws_min", {"1", "3"}},
    {"prior_value", {"0", "0.01", "0.1"}},
    {"prior_share", {"0", "0.3", "2"}},
    {"weight_epsilon", {"0.05"}},
    {"whitelist", {"13-15", "middle"}},
    {"sinks", {"1", "3"}},
    {"recent", {"2", "0.3"}},
    {"first_layer_recent", {"4", "0.6"}},
    {"std_keep", {"0.4"}},
    {"stage1_ratio", {"0", "0.25", "0.8"}},
    {"stage1_mass", {"0.5", "0.99"}},
    {"stage1_bias", {"window"}},
    {"protected_rank", {"layer-max"}},
    {"class_frequent", {"0", "0.1"}},
    {"class_local", {"0", "0.15"}},
    {"class_recovery", {"0.5", "0.95"}},
    {"ada_floor", {"0", "0.35", "1"}},
    {"ada_total", {"product"}},
    {"pyramid_beta", {"1", "3.5"}},
    {"cosine_floor", {"0", "0.3"}},
    {"cake_tau1", {"0.7"}},
    {"cake_tau2", {"2"}},
    {"streaming_share", {"0.3"}},
    {"allocate_score", {"unweighted"}},
    {"nested", {"yes"}},
    {"joint_depth", {"0.5", "2"}},
    {"fair_spans", {"head+tail", "middle+tail"}},
    {"fair_rounding", {"remainder"}},
    {"fair_scores", {"default"}},
    {"debias_lambda", {"0", "0.3", "1"}},
};

/// Stages whose kinds are drawn, and how often they leave the default.
const std::vector<std::pair<std::string, double>> kStages = {
    {"queries", 0.5}, {"indicator", 0.8}, {"aggregate", 0.8}, {"smooth", 0.6},
    {"group", 0.5},   {"prior", 0.4},     {"weight", 0.4},    {"normalize", 0.4},
    {"stage1", 0.3},  {"allocate", 0.6},  {"constrain", 0.3}};

/// Kinds that no typed record may choose.
const std::set<std::string> kReserved = {"queries=future", "aggregate=each", "allocate=everything"};

/// Combinations whose meaning the rules leave open.
bool unclear(const Settings& s) {
  const bool local = !s.is("constrain", "none") && s.is("fair_scores", "local");
  return (local && s.is("allocate", "cake") && !s.is("queries", "window")) ||
         (local && s.is("allocate", "d2o")) ||
         (local && s.is("rounding", "kvpress") && s.is("stage1", "ratio")) ||
         (s.is("protected_rank", "layer-max") && !s.is("whitelist", "none"));
}

bool allowed(const std::string& text) {
  try {
    return !unclear(Record::parse(text).settings);
  } catch (const Error&) {
    return false;
  }
}

std::string random_kinds(Dice& dice) {
  std::string text = "snapkv";
  if (dice.roll() < 0.3) text += ",granularity=query";
  for (const auto& [stage, often] : kStages) {
    if (dice.roll() >= often) continue;
    std::vector<const KindInfo*> kinds = kinds_of_stage(stage);
    // The tests also hold the example of CONTRIBUTING.md, which the reference does not know.
    std::erase_if(kinds, [](const KindInfo* k) { return k->name.starts_with("example-"); });
    const std::string kind = dice.pick(kinds)->name;
    if (kReserved.contains(stage + "=" + kind)) continue;
    std::string cell = "," + stage + "=" + kind;
    if (kind == "debias") cell += ",fair_spans=head+tail";
    if (kind == "external") cell += ",scores=FILE";
    if (kind == "duo" || kind == "table") cell += ",table=FILE";
    if (allowed(text + cell)) text += cell;
  }
  return text;
}

}  // namespace

std::vector<std::string> random_records(size_t count, uint64_t seed) {
  Dice dice(seed);
  std::set<std::string> found;
  std::vector<std::string> records;
  while (records.size() < count) {
    std::string text = random_kinds(dice);
    for (const auto& [key, values] : kValues) {
      if (dice.roll() >= 0.35) continue;
      const std::string cell = "," + key + "=" + dice.pick(values);
      if (allowed(text + cell)) text += cell;
    }
    if (allowed(text) && found.insert(text).second) records.push_back(text);
  }
  return records;
}

}  // namespace kvsim::test
