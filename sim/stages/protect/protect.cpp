#include "sim/stages/protect/protect.hpp"

#include <algorithm>

#include "sim/stages/common_keys.hpp"
#include "sim/stages/indicator/indicator.hpp"
#include "sim/stages/merge/merge.hpp"
#include "sim/stages/notes.hpp"
#include "sim/stages/spans.hpp"

namespace kvsim {
namespace keys {

const Declare sinks("sinks", "count >= 0 entries", "0", "first entries that are protected", always,
                    only_with(selects_entries_if), lets_nest, tested("1 3"));
const Declare recent("recent", "share >= 0 entries", "0",
                     "newest entries that are protected, but scored all the same", always,
                     only_with(selects_entries_if), tested("2 0.3"));
const Declare whitelist("whitelist", "text spans or none", "none",
                        "spans or ranges a-b joined by + that every head keeps", always,
                        only_with(selects_entries_if), checked_by(span_list_fault), lets_nest,
                        tested("13-15 middle"));
const Declare first_layer_recent(
    "first_layer_recent", "share >= 0 entries", "0",
    "newest entries that the model's first layer protects, where more than `recent`", always,
    only_with(selects_entries_if), tested("4 0.6"));
const Declare std_keep("std_keep", "number [0, 1]", "0",
                       "share of B for entries of largest deviation (RoCo)", always,
                       only_with(scores_rows_if, selects_entries_if),
                       lets_nest_if(nests_at_default), tested("0.4"));
const Declare protected_rank("protected_rank", "guaranteed | layer-max", "guaranteed",
                             "protected entries are kept, or compete at the layer's largest score");

}  // namespace keys

int64_t newest_protected(const Settings& settings, int layer, int64_t budget) {
  const int64_t recent = settings.share(keys::recent, budget);
  return layer > 0 ? recent : std::max(recent, settings.share(keys::first_layer_recent, budget));
}

std::vector<uint32_t> protected_entries(const ProtectRequest& request) {
  const Settings& settings = *request.settings;
  const Range range = request.range;
  std::vector<uint32_t> granted;
  std::vector<uint8_t> taken(static_cast<size_t>(range.size()), 0);
  const auto grant = [&](int64_t i) {
    uint8_t& mine = taken[static_cast<size_t>(i - range.begin)];
    if (!mine) granted.push_back(static_cast<uint32_t>(i));
    mine = 1;
  };
  for (const Range& wanted : *request.whitelist)
    for (int64_t i = std::max(wanted.begin, range.begin); i < std::min(wanted.end, range.end); ++i)
      grant(i);
  if (request.first)
    for (int64_t i = range.begin; i < std::min(settings.count(keys::sinks), range.end); ++i)
      grant(i);
  const int64_t recent = request.last ? newest_protected(settings, request.layer, request.budget)
                                      : 0;
  const int64_t newest = std::max(request.window, recent);
  for (int64_t i = range.end; i-- > std::max(range.begin, range.end - newest);) grant(i);
  if (request.deviation.empty()) return granted;

  const int64_t spread = settings.decimal(keys::std_keep).floor_times(request.budget) - recent;
  std::vector<uint32_t> others;
  for (int64_t i = range.begin; i < range.end; ++i)
    if (!taken[static_cast<size_t>(i - range.begin)] && request.candidate[static_cast<size_t>(i)])
      others.push_back(static_cast<uint32_t>(i));
  const auto count = static_cast<size_t>(
      std::clamp<int64_t>(spread, 0, static_cast<int64_t>(others.size())));
  std::partial_sort(others.begin(), others.begin() + static_cast<int64_t>(count), others.end(),
                    [&](uint32_t a, uint32_t b) {
    const double x = request.deviation[a];
    const double y = request.deviation[b];
    return x != y ? x > y : a > b;
  });
  granted.insert(granted.end(), others.begin(), others.begin() + static_cast<int64_t>(count));
  return granted;
}

}  // namespace kvsim

namespace kvsim::stages::protect::protect {
namespace {

const Declare stage1("stage1", "kind", "none", "entries forced before the ranking by score",
                     only_with(selects_entries_if));
const Declare stage1_ratio("stage1_ratio", "number [0, 1]", "0.5",
                           "share of the head's budget forced by the unweighted score",
                           tested("0 0.25 0.8"));
const Declare stage1_mass("stage1_mass", "number [0, 1]", "0.9",
                          "share of the head's attention that the forced entries hold",
                          tested("0.5 0.99"));
const Declare stage1_bias(
    "stage1_bias", "shifted | window", "shifted",
    "what is taken off stage1_mass: attention on the last candidates, or on the window");

enum class Bias { shifted, window };  // words of stage1_bias

class NoStage1 : public Stage1 {
 public:
  NoStage1() : Stage1({"stage1", "none", "nothing is forced", ""}) {}
  bool forces_nothing() const override { return true; }
};
const Register<Stage1, NoStage1> none;

/// CriticalKV Algorithm 1: half of the budget by attention alone.
class Ratio : public Stage1 {
 public:
  Ratio()
      : Stage1({"stage1", "ratio",
                "the best by the score before `weight`, protected ones counted in", "CriticalKV",
                "stage1_ratio"}) {}
  bool uses_unweighted() const override { return true; }
  std::vector<uint32_t> after_allocate(const Stage1Request& r) const override {
    const Settings& settings = *r.settings;
    int64_t places = settings.decimal(stage1_ratio).floor_times(r.budget);
    const bool head_budget = settings.word<AllocateScore>(keys::allocate_score) ==
                             AllocateScore::unweighted;
    if (rounds_like_kvpress(settings) && !r.budget_is_count && !head_budget) {
      const double phi = settings.real(stage1_ratio);
      places = phi == 0 ? 0 : std::max<int64_t>(1, static_cast<int64_t>(r.kvpress_kept * phi));
    }
    std::vector<uint32_t> forced;
    places -= r.protected_count;
    for (size_t at = 0; at < r.by_unweighted->size() && places > 0; ++at) {
      const uint32_t i = (*r.by_unweighted)[at];
      if (!r.range.contains(i) || (*r.is_protected)[i]) continue;
      forced.push_back(i);
      --places;
    }
    return forced;
  }
};
const Register<Stage1, Ratio> ratio;

/// DefensiveKV's published code: the entries that hold most of the head's attention.
class Mass : public Stage1 {
 public:
  Mass()
      : Stage1({"stage1", "mass", "the entries that hold stage1_mass of the head's attention",
                "DefensiveKV code", "stage1_mass stage1_bias"}) {}
  bool uses_mass() const override { return true; }
  std::vector<uint32_t> before_allocate(const Stage1Request& r) const override {
    const ScoredLayer& scored = *r.scored;
    const Range candidates = scored.segments.at(0).candidates;
    const double bias = r.settings->word<Bias>(stage1_bias) == Bias::shifted
                            ? scored.mass_before_window
                            : scored.mass_of_window;
    const double limit = r.settings->real(stage1_mass) - bias;
    const auto mass = scored.mass.row(r.owner);
    double total = 0;
    for (int64_t i = candidates.begin; i < candidates.end; ++i)
      total += mass[static_cast<size_t>(i)];
    std::vector<uint32_t> order;
    for (int64_t i = candidates.begin; i < candidates.end; ++i)
      order.push_back(static_cast<uint32_t>(i));
    std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
      return mass[a] != mass[b] ? mass[a] > mass[b] : a > b;
    });
    const int64_t most = std::min(std::max<int64_t>(0, r.mass_cap), r.budget - r.protected_count);
    std::vector<uint32_t> forced;
    double sum = 0;
    for (uint32_t i : order) {
      sum += total > 0 ? mass[i] / total : 0;
      if (sum >= limit || static_cast<int64_t>(forced.size()) >= most) break;
      forced.push_back(i);
    }
    std::erase_if(forced, [&](uint32_t i) { return (*r.is_protected)[i] != 0; });
    return forced;
  }
};
const Register<Stage1, Mass> mass;
const DeclareNote mass_note_1("stage1=mass", "DefensiveKV Algorithm 1",
                              "the repository forces the entries that hold most attention before "
                              "anything is scored; the algorithm as printed has no such step",
                              "the bare presets are as printed; `:code` forces them. Its cap, "
                              "negative in Python slicing at small budgets, is clamped at 0");
const DeclareNote mass_note_2(
    "stage1_bias", "DefensiveKV repository",
    "a comment says attention on the window, the code takes that on the last candidates",
    "`shifted` is the code, `window` the comment");

}  // namespace
}  // namespace kvsim::stages::protect::protect
