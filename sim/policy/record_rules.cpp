#include "sim/policy/record_rules.hpp"

#include <algorithm>

#include "sim/core/error.hpp"
#include "sim/core/nearest.hpp"
#include "sim/stages/aggregate/aggregate.hpp"
#include "sim/stages/allocate/allocate.hpp"
#include "sim/stages/constrain/constrain.hpp"
#include "sim/stages/group/group.hpp"
#include "sim/stages/indicator/indicator.hpp"
#include "sim/stages/merge/merge.hpp"
#include "sim/stages/parameter.hpp"
#include "sim/stages/protect/stage1.hpp"
#include "sim/stages/quantize/quantize.hpp"
#include "sim/stages/queries/queries.hpp"
#include "sim/stages/schedule/schedule.hpp"
#include "sim/stages/smooth/smooth.hpp"

namespace kvsim {
namespace {

template <class Stage>
const Stage& chosen(const Settings& settings, const char* stage) {
  return Kinds<Stage>::find(settings.text(stage));
}

/// Names of a stage's kinds of which a property holds.
template <class Stage, class Property>
std::vector<std::string> kinds_that(const char* stage, Property property) {
  std::vector<std::string> names;
  for (const KindInfo* kind : kinds_of_stage(stage))
    if (property(Kinds<Stage>::find(kind->name))) names.push_back(kind->name);
  return names;
}

/// One rule that a record breaks.
class Complaints {
 public:
  explicit Complaints(std::string text) : text_(std::move(text)) {}
  void require(bool holds, const std::string& what, const std::string& expected) const {
    if (!holds) usage_error({.what = what, .where = "policy " + text_, .expected = expected});
  }

 private:
  std::string text_;
};

/// A kind that looks ahead may not be chosen by a user, only by a preset that has it.
void only_from_preset(const Complaints& complaints, const Settings& original,
                      const Settings& settings, const char* stage) {
  const std::string& name = settings.text(stage);
  for (const KindInfo* kind : kinds_of_stage(stage))
    if (kind->name == name && only_in_presets(*kind))
      complaints.require(name == original.text(stage),
                         std::string(stage) + "=" + name + " looks into the future",
                         "an oracle-* preset");
}

void check_scoring(const Complaints& complaints, const Settings& settings) {
  const auto& indicator = chosen<Indicator>(settings, "indicator");
  const auto& smooth = chosen<Smooth>(settings, "smooth");
  const auto& group = chosen<Group>(settings, "group");
  const std::string name = "indicator=" + settings.text("indicator");
  const std::string& order = settings.text("order");
  const bool rows = indicator.axes() != Axes::entry;
  const bool per_query_head = settings.is("granularity", "query");
  complaints.require(!rows || !settings.is("queries", "none"), name + " needs observing queries",
                     "queries=window, last or all");
  complaints.require(!indicator.aggregates_first() || order[0] == 'a', name + " aggregates first",
                     "order=asg or ags");
  complaints.require(
      !settings.is("indicator", "rehearsal") || !chosen<Queries>(settings, "queries").looks_ahead(),
      name + " takes the prompt's queries for later ones", "queries=spread, window, last or all");
  const bool before = rows && order.find('s') < order.find('a');
  complaints.require(!smooth.only_before_aggregate() || before,
                     "smooth=" + settings.text("smooth") + " works on rows",
                     "an order with s before a");
  const bool after = rows && order.find("as") != std::string::npos;
  complaints.require(smooth.drift() == Drift::none || after,
                     "smooth=" + settings.text("smooth") + " follows the aggregated rows",
                     "an order with s directly after a");
  complaints.require(smooth.drift() != Drift::attention || order[0] == 'a',
                     "smooth=" + settings.text("smooth") + " follows every head's attention",
                     "order=asg");
  complaints.require(!per_query_head || group.span() == GroupSpan::head,
                     "granularity=query has no groups", "group=none");
  complaints.require(
      per_query_head || indicator.axes() != Axes::head_row || group.span() != GroupSpan::head,
      "group=none leaves one score per query head", "granularity=query");
  complaints.require(!per_query_head || indicator.axes() != Axes::group_row,
                     name + " scores KV heads", "granularity=kv");
}

void check_budget(const Complaints& complaints, const Settings& settings) {
  const auto& constrain = chosen<Constrain>(settings, "constrain");
  const bool rescored = constrain.cuts() && !constrain.keeps_scores(settings);
  complaints.require(!rescored || chosen<Smooth>(settings, "smooth").drift() == Drift::none,
                     "smooth=" + settings.text("smooth") + " follows the whole prompt",
                     "fair_scores=default");
  complaints.require(!rescored || !chosen<Stage1>(settings, "stage1").uses_mass(),
                     "stage1=" + settings.text("stage1") + " looks at the whole prompt",
                     "fair_scores=default");
  const bool observed = !settings.is("queries", "none");
  complaints.require(observed || !chosen<Allocate>(settings, "allocate").watches(),
                     "allocate=" + settings.text("allocate") + " needs observing queries",
                     "queries=window, last or all");
  complaints.require(observed || !chosen<Stage1>(settings, "stage1").uses_mass(),
                     "stage1=" + settings.text("stage1") + " needs observing queries",
                     "queries=window, last or all");
  for (const char* file : {"table", "scores"})
    if (used_keys(settings).contains(file))
      complaints.require(!settings.is(file, "none"), "no file is named",
                         std::string(file) + "=FILE");
  complaints.require(
      !settings.flag("nested") || chosen<Group>(settings, "group").span() == GroupSpan::layer,
      "nested=yes needs one score for all heads", "group=layer-mean");
  const std::string fault = chosen<Quantize>(settings, "quantize").fault(settings);
  complaints.require(fault.empty(), "quantize=" + settings.text("quantize"), fault);
}

void check_merge(const Complaints& complaints, const Settings& settings) {
  const auto& merge = chosen<Merge>(settings, "merge");
  const std::vector<std::string> fitting = merge.votes();
  std::string listed;
  for (const std::string& votes : fitting) listed += (listed.empty() ? "" : " or ") + votes;
  complaints.require(std::ranges::find(fitting, settings.text("votes")) != fitting.end(),
                     "votes=" + settings.text("votes") + " with merge=" + settings.text("merge"),
                     "votes=" + listed);
  if (!merge.merges()) return;
  const std::string name = "merge=" + settings.text("merge");
  complaints.require(!chosen<Schedule>(settings, "schedule").per_step(),
                     name + " with sets that are chosen anew at each step", "merge=drop");
  if (settings.is("merge_order", "merge-first"))
    complaints.require(settings.is("constrain", "none") && settings.is("stage1", "none") &&
                           settings.is("protected_rank", "guaranteed") &&
                           !chosen<Schedule>(settings, "schedule").decodes(),
                       "merge_order=merge-first merges the prompt as a whole",
                       "no constraint, no stage1, schedule=prefill or periodic");
  if (!merge.replaces_selection()) return;
  complaints.require(!settings.is("queries", "window") && settings.is("constrain", "none") &&
                         settings.is("protected_rank", "guaranteed"),
                     name + " chooses among all entries",
                     "queries=all, last or none, no constraint");
  complaints.require(!chosen<Schedule>(settings, "schedule").decodes(),
                     name + " replaces selection", "schedule=prefill or periodic");
}

/// What can go on from step to step (policies.md 12).
void check_decode(const Complaints& complaints, const Settings& settings) {
  if (!chosen<Schedule>(settings, "schedule").decodes()) return;
  const std::string with = " with schedule=decode";
  for (const char* key : {"constrain", "smooth", "prior", "stage1", "quantize"})
    complaints.require(settings.is(key, "none"), key + ("=" + settings.text(key)) + with,
                       std::string(key) + "=none");
  const auto& indicator = chosen<Indicator>(settings, "indicator");
  complaints.require(indicator.scores_slots(), "indicator=" + settings.text("indicator") + with,
                     "indicator=attention, below-mean, position, key-norm or random");
  complaints.require(
      indicator.axes() == Axes::entry || chosen<Aggregate>(settings, "aggregate").follows_slots(),
      "aggregate=" + settings.text("aggregate") + with,
      "aggregate=sum, mean, mean-visible, max, last, ema or linear");
  complaints.require(!chosen<Queries>(settings, "queries").looks_ahead(), "an oracle" + with,
                     "schedule=prefill");
}

}  // namespace

const std::map<std::string, KeyUse>& key_uses() {
  static const std::map<std::string, KeyUse> uses = [] {
    std::map<std::string, KeyUse> all;
    for (const char* key : {"granularity", "rounding", "tie", "skip_layers", "positions",
                            "whitelist", "sinks", "recent", "order", "std_keep", "nested"})
      all[key].always = true;
    const auto rows = kinds_that<Indicator>(
        "indicator", [](const Indicator& kind) { return kind.axes() != Axes::entry; });
    for (const char* key : {"aggregate", "order", "std_keep"})
      all[key].only_with["indicator"] = rows;
    all["group"].only_with["indicator"] = kinds_that<Indicator>(
        "indicator", [](const Indicator& kind) { return kind.axes() == Axes::head_row; });
    all["nested"].only_with["group"] = kinds_that<Group>(
        "group", [](const Group& kind) { return kind.span() == GroupSpan::layer; });
    all["score_estimate"].only_with["merge"] = kinds_that<Merge>(
        "merge", [](const Merge& kind) { return kind.estimates() != EstimateLines::none; });
    const auto selecting = kinds_that<Merge>(
        "merge", [](const Merge& kind) { return !kind.replaces_selection(); });
    for (const char* key : {"whitelist", "sinks", "recent", "std_keep", "stage1", "tie"})
      all[key].only_with["merge"] = selecting;
    return all;
  }();
  return uses;
}

bool only_in_presets(const KindInfo& kind) {
  if (kind.stage == "queries") return Kinds<Queries>::find(kind.name).looks_ahead();
  if (kind.stage == "aggregate") return Kinds<Aggregate>::find(kind.name).per_step();
  return kind.stage == "schedule" && Kinds<Schedule>::find(kind.name).per_step();
}

std::string usual_votes(const Settings& settings) {
  return chosen<Merge>(settings, "merge").votes().front();
}

std::set<std::string> used_keys(const Settings& settings) {
  const auto& uses = key_uses();
  const auto holds = [&](const std::string& key) {
    const auto use = uses.find(key);
    return use == uses.end() || std::ranges::all_of(use->second.only_with, [&](const auto& one) {
             return std::ranges::find(one.second, settings.text(one.first)) != one.second.end();
           });
  };
  std::set<std::string> used;
  for (const auto& [key, use] : uses)
    if (use.always) used.insert(key);
  for (const Parameter* p : parameters()) {
    if (p->type != ValueType::kind || !holds(p->key)) continue;
    used.insert(p->key);
    for (const KindInfo* kind : kinds_of_stage(p->key))
      if (kind->name == settings.text(p->key)) used.insert(kind->keys.begin(), kind->keys.end());
  }
  std::erase_if(used, [&](const std::string& key) { return !holds(key); });
  return used;
}

void check_record(const std::string& text, const Settings& original,
                  const std::set<std::string>& typed, const Settings& settings) {
  const Complaints complaints(text);
  for (const char* stage : {"queries", "aggregate", "schedule"})
    only_from_preset(complaints, original, settings, stage);
  complaints.require(
      chosen<Schedule>(settings, "schedule").per_step() ==
          chosen<Aggregate>(settings, "aggregate").per_step(),
      "schedule=" + settings.text("schedule") + " with aggregate=" + settings.text("aggregate"),
      "per-step with each, or neither");
  check_scoring(complaints, settings);
  check_merge(complaints, settings);
  check_decode(complaints, settings);
  check_budget(complaints, settings);
  const std::set<std::string> used = used_keys(settings);
  for (const std::string& key : typed) {
    if (used.contains(key)) continue;
    usage_error({.what = "the chosen stages do not use " + key,
                 .where = "policy " + text,
                 .found = key + "=" + settings.text(key),
                 .expected = "only keys that take effect",
                 .hint = did_you_mean(key, {used.begin(), used.end()})});
  }
}

}  // namespace kvsim
