#include "sim/policy/prepared_record.hpp"
#include "sim/policy/record.hpp"
#include "sim/stages/allocate/allocate.hpp"
#include "sim/stages/indicator/indicator.hpp"
#include "sim/stages/merge/merge.hpp"
#include "sim/stages/stages.hpp"

namespace kvsim {
namespace {

/// "stage=first, second or third": the kinds of a stage for which `fits` holds.
template <class Fits>
std::string kinds_of_stage_that(const std::string& stage, const Fits& fits) {
  std::vector<std::string> names;
  for (const KindInfo* kind : kinds_of_stage(stage))
    if (fits(find_kind(stage, kind->name))) names.push_back(kind->name);
  return stage + "=" + either(names);
}

template <class Stage, class Fits>
std::string kinds_that(const Fits& fits) {
  return kinds_of_stage_that(parameter_of(Kinds<Stage>::key()).key, [&](const Kind& kind) {
    return fits(static_cast<const Stage&>(kind));
  });
}

/// Kinds that a user may choose.
std::string observing_queries() {
  return kinds_that<Queries>(
      [](const Queries& kind) { return kind.observes() && !kind.looks_ahead(); });
}

/// Refuses a record that breaks a rule.
struct Require {
  std::string text;
  const Settings& settings;
  void operator()(bool holds, const std::string& what, const std::string& expected) const {
    if (!holds) usage_error({what, "policy " + text, "", expected});
  }
  /// "key=value" of the record.
  std::string cell(const std::string& key) const { return key + "=" + settings.text(key); }
};

/// A kind that looks ahead may not be chosen by a user, only by a preset that has it.
void only_from_preset(const Require& require, const Settings& original, const Settings& settings,
                      const std::string& stage) {
  const Kind& kind = settings.kind(stage);
  require(!kind.looks_ahead() || &kind == &original.kind(stage),
          stage + "=" + kind.info().name + " looks into the future", "an oracle-* preset");
}

void check_scoring(const Require& require, const Settings& settings) {
  const auto& queries = chosen<Queries>(settings);
  const auto& indicator = chosen<Indicator>(settings);
  const auto& smooth = chosen<Smooth>(settings);
  const auto& group = chosen<Group>(settings);
  const std::string name = require.cell("indicator");
  const ScoringSteps steps(settings);
  const bool rows = has_rows(indicator.axes()), observes = indicator.axes() != Axes::entry;
  const bool of_query_heads = per_query_head(settings);
  require(!observes || queries.observes(), name + " needs observing queries", observing_queries());
  require(!indicator.as<AggregatesFirst>() || steps.starts_with(ScoringStep::aggregate),
          name + " aggregates first", "order=asg or ags");
  require(!indicator.use().moves_queries || !queries.looks_ahead(),
          name + " takes the prompt's queries for later ones", observing_queries());
  require(!observes || !queries.looks_ahead() || indicator.takes_future(),
          name + " looks at the prompt", observing_queries());
  const bool probed = queries.of_probe() || chosen<Join>(settings).joins();
  const auto takes_probes = [](const Indicator& kind) {
    return has_rows(kind.axes()) && kind.use().probes != Probes::refused;
  };
  require(!observes || !probed || takes_probes(indicator),
          name + " does not take the queries of a probe", kinds_that<Indicator>(takes_probes));
  require(indicator.use().probes != Probes::only || queries.of_probe(),
          name + " takes what a probe reads again", "queries=probe");
  require(!probed || !chosen<Schedule>(settings).repeats(), "a probe follows the whole prompt",
          "schedule=prefill");
  const bool before = rows && steps.before_aggregate(ScoringStep::smooth);
  require(!smooth.only_before_aggregate() || before, require.cell("smooth") + " works on rows",
          "an order with s before a");
  const bool after = rows && steps.after_aggregate().starts_with(ScoringStep::smooth);
  require(smooth.drift() == Drift::none || after,
          require.cell("smooth") + " follows the aggregated rows",
          "an order with s directly after a");
  require(smooth.drift() != Drift::attention || steps.starts_with(ScoringStep::aggregate),
          require.cell("smooth") + " follows every head's attention", "order=asg");
  require(!of_query_heads || group.span() == GroupSpan::head, "granularity=query has no groups",
          "group=none");
  require(of_query_heads || !has_query_heads(indicator.axes()) || group.span() != GroupSpan::head,
          "group=none leaves one score per query head", "granularity=query");
  require(!of_query_heads || !observes || has_query_heads(indicator.axes()),
          name + " scores KV heads", "granularity=kv");
}

void check_budget(const Require& require, const Settings& settings,
                  const std::set<std::string>& used) {
  const auto& stage1 = chosen<Stage1>(settings);
  const auto& constrain = chosen<Constrain>(settings);
  const bool rescored = constrain.cuts() && !constrain.keeps_scores(settings);
  require(!rescored || chosen<Smooth>(settings).drift() == Drift::none,
          require.cell("smooth") + " follows the whole prompt", "fair_scores=default");
  require(!rescored || !stage1.uses_mass(), require.cell("stage1") + " looks at the whole prompt",
          "fair_scores=default");
  const bool observed = chosen<Queries>(settings).observes();
  require(observed || !chosen<Allocate>(settings).watches(),
          require.cell("allocate") + " needs observing queries", observing_queries());
  require(observed || !stage1.uses_mass(), require.cell("stage1") + " needs observing queries",
          observing_queries());
  for (const std::string& key : used)
    if (parameter_of(key).is_file)
      require(!settings.is_none(key), "no file is named", key + "=FILE");
  require(!settings.flag(keys::nested) || chosen<Group>(settings).span() == GroupSpan::layer,
          "nested=yes needs one score for all heads", "group=layer-mean");
  const std::string fault = chosen<Quantize>(settings).fault(settings);
  require(fault.empty(), require.cell("quantize"), fault);
}

void check_blocks(const Require& require, const Settings& settings) {
  const int64_t size = settings.count(keys::block);
  const std::string with = " with block=" + std::to_string(size);
  require(size > 1 || settings.word<BlockScore>(keys::block_score) == BlockScore::mean,
          "block_score is of blocks, and a block of one entry is that entry",
          "block=16 or the like");
  if (size == 1) return;
  require(!chosen<Constrain>(settings).cuts(), require.cell("constrain") + with, "constrain=none");
  require(!merges_first(settings), "merge_order=merge-first" + with, "merge_order=evict-first");
}

void check_merge(const Require& require, const Settings& settings) {
  const auto& constrain = chosen<Constrain>(settings);
  const auto& schedule = chosen<Schedule>(settings);
  const auto& queries = chosen<Queries>(settings);
  const auto& merge = chosen<Merge>(settings);
  const std::vector<std::string> fitting = merge.votes();
  require(contains(fitting, settings.text("votes")),
          require.cell("votes") + " with merge=" + settings.text("merge"),
          "votes=" + either(fitting));
  if (!merge.merges()) return;
  const std::string name = require.cell("merge");
  const bool guaranteed = settings.word<ProtectedRank>(keys::protected_rank) ==
                          ProtectedRank::guaranteed;
  if (merges_first(settings))
    require(!constrain.cuts() && chosen<Stage1>(settings).changes_nothing() && guaranteed &&
                !schedule.decodes(),
            "merge_order=merge-first merges the prompt as a whole",
            "no constraint, no stage1, schedule=prefill or periodic");
  if (merge.fits_queries())
    require(queries.observes() && !schedule.decodes(), name + " fits to the queries that observe",
            "observing queries, schedule=prefill or periodic");
  if (!merge.replaces_selection()) return;
  require(!queries.has_window() && !constrain.cuts() && guaranteed,
          name + " chooses among all entries", "queries=all, last or none, no constraint");
  require(!schedule.decodes(), name + " replaces selection", "schedule=prefill or periodic");
}

/// Checks that every later step can choose by the record (policies.md 12).
void check_each_step(const Require& require, const Settings& settings,
                     const std::set<std::string>& used) {
  const auto& schedule = chosen<Schedule>(settings);
  const auto& indicator = chosen<Indicator>(settings);
  const std::string with = " with schedule=" + settings.text("schedule");
  require((schedule.per_step() && schedule.looks_ahead()) == chosen<Aggregate>(settings).per_step(),
          require.cell("aggregate") + with, "per-step with each, or neither");
  const auto* const of_steps = indicator.as<ScoresSteps>();
  require(schedule.per_step() || !of_steps || !of_steps->nowhere_else(),
          require.cell("indicator") + with, "schedule=reads");
  if (!schedule.per_step()) return;
  const auto fits = [&](const Indicator& kind) {
    const auto* const steps = kind.as<ScoresSteps>();
    return steps && steps->nowhere_else() != schedule.looks_ahead();
  };
  require(fits(indicator), require.cell("indicator") + with, kinds_that<Indicator>(fits));
  for (const Parameter* p : parameters()) {
    if (p->type != ValueType::kind || !used.contains(p->key) || p->key == "indicator") continue;
    const auto stands = [&](const Kind& kind) {
      return kind.info().name == p->fallback || kind.at_each_step();
    };
    require(stands(settings.kind(p->key)), require.cell(p->key) + with,
            kinds_of_stage_that(p->key, stands));
  }
  require(!moves_positions(settings), "positions=cache" + with, "positions=absolute");
}

/// Checks that the record can go on from step to step (policies.md 12).
void check_decode(const Require& require, const Settings& settings) {
  if (!chosen<Schedule>(settings).decodes()) return;
  const std::string with = " with schedule=decode";
  for (const Parameter* p : parameters()) {
    if (p->type != ValueType::kind) continue;
    require(settings.kind(p->key).goes_on(), require.cell(p->key) + with,
            kinds_of_stage_that(p->key, [](const Kind& kind) { return kind.goes_on(); }));
  }
  const bool smoothed = !chosen<Smooth>(settings).changes_nothing();
  require(!smoothed || !chosen<Redundancy>(settings).changes_nothing(),
          require.cell("smooth") + with, "smooth=none, or redundancy=key-cosine");
  const auto& indicator = chosen<Indicator>(settings);
  require(scores_slots(indicator), require.cell("indicator") + with,
          kinds_that<Indicator>(scores_slots));
  require(!has_rows(indicator.axes()) || chosen<Aggregate>(settings).follows_slots(),
          require.cell("aggregate") + with,
          kinds_that<Aggregate>([](const Aggregate& kind) { return kind.follows_slots(); }));
  require(indicator.axes() != Axes::head || chosen<Group>(settings).span() != GroupSpan::layer,
          require.cell("group") + " with indicator=" + settings.text("indicator") + with,
          "a group of the heads that share a key");
  require(chosen<Memory>(settings).changes_nothing() || has_rows(indicator.axes()),
          require.cell("memory") + " with indicator=" + settings.text("indicator") + with,
          "an indicator of attention, or memory=none");
  require(!chosen<Queries>(settings).looks_ahead(), "an oracle" + with, "schedule=prefill");
  const bool unites = chosen<Union>(settings).unites();
  require(!unites || (chosen<Allocate>(settings).even() && settings.real(keys::std_keep) == 0 &&
                      !unites_layers(settings)),
          require.cell("union") + with, "allocate=uniform, std_keep=0, union_layers=no");
  require((!unites && settings.count(keys::block) == 1) || !chosen<Merge>(settings).merges(),
          require.cell("merge") + " with union or block" + with, "merge=drop");
}

/// Checks that the record sees no more than a cache that was compressed before (policies.md 12).
void check_chunks(const Require& require, const Settings& settings) {
  if (!chosen<Schedule>(settings).in_chunks()) return;
  const std::string with = " with schedule=chunked";
  const auto& queries = chosen<Queries>(settings);
  require(compresses_chunks_alone(settings) ? !queries.looks_ahead()
                                            : queries.observes_newest(settings),
          require.cell("queries") + with + ": those of earlier chunks are gone",
          "queries=window or none, or last with last_queries=1; or chunk_scope=chunk");
  require(!chosen<Join>(settings).joins() && !queries.of_probe(), "a probe" + with,
          "queries=window or none, or last with last_queries=1");
  const auto& indicator = chosen<Indicator>(settings);
  require(!indicator.use().moves_queries && file_keys(settings).empty(),
          require.cell("indicator") + with + " asks for an entry's own position",
          "an indicator of attention, of keys or of values");
  require(chosen<Allocate>(settings).even(), require.cell("allocate") + with,
          kinds_that<Allocate>([](const Allocate& kind) { return kind.even(); }));
  require(!per_query_head(settings), "granularity=query" + with, "granularity=kv");
  require(!moves_positions(settings), "positions=cache" + with, "positions=absolute");
  require(!chosen<Merge>(settings).merges() && selects_entries(settings),
          require.cell("merge") + with, "merge=drop");
  const bool plain = !chosen<Constrain>(settings).cuts() &&
                     chosen<Stage1>(settings).changes_nothing() &&
                     settings.is_none(keys::whitelist) && settings.real(keys::std_keep) == 0 &&
                     settings.count(keys::block) == 1 && !settings.flag(keys::nested) &&
                     !unites_layers(settings);
  require(plain, "places of the whole prompt" + with,
          "no constrain, stage1, whitelist, std_keep, block, nested or union_layers");
}

}  // namespace

const std::map<std::string, KeyUse>& key_uses() {
  static const std::map<std::string, KeyUse> uses = [] {
    std::map<std::string, KeyUse> all;
    for (const Parameter* p : parameters()) {
      if (p->always) all[p->key].always = true;
      for (const KindCondition& condition : p->only_with)
        for (const KindInfo* kind : kinds_of_stage(condition.stage))
          if (condition.fits(find_kind(condition.stage, kind->name)))
            all[p->key].only_with[condition.stage].push_back(kind->name);
    }
    return all;
  }();
  return uses;
}

std::string usual_votes(const Settings& settings) {
  return chosen<Merge>(settings).votes().front();
}

std::set<std::string> used_keys(const Settings& settings) {
  const auto& uses = key_uses();
  const auto holds = [&](const std::string& key) {
    const auto use = uses.find(key);
    return use == uses.end() || std::ranges::all_of(use->second.only_with, [&](const auto& one) {
             return contains(one.second, settings.text(one.first));
           });
  };
  std::set<std::string> used;
  for (const auto& [key, use] : uses)
    if (use.always) used.insert(key);
  for (const Parameter* p : parameters()) {
    if (p->type != ValueType::kind || !holds(p->key)) continue;
    used.insert(p->key);
    const std::vector<std::string>& of_its_kind = settings.kind(p->key).info().keys;
    used.insert(of_its_kind.begin(), of_its_kind.end());
  }
  std::erase_if(used, [&](const std::string& key) { return !holds(key); });
  return used;
}

std::vector<std::string> file_keys(const Settings& settings) {
  std::vector<std::string> files;
  for (const std::string& key : used_keys(settings))
    if (parameter_of(key).is_file) files.push_back(key);
  return files;
}

bool budgets_nest(const Settings& settings) {
  const std::set<std::string> used = used_keys(settings);
  std::set<std::string> of_kinds;  // keys that the chosen kinds name, and have spoken for
  for (const Parameter* p : parameters())
    if (p->type == ValueType::kind && used.contains(p->key)) {
      const std::vector<std::string>& its = settings.kind(p->key).info().keys;
      of_kinds.insert(its.begin(), its.end());
    }
  return std::ranges::all_of(used, [&](const std::string& key) {
    const Parameter& p = parameter_of(key);
    if (p.type == ValueType::kind) return settings.kind(key).nests(settings);
    if (p.type == ValueType::share && settings.is_fraction(key)) return false;
    if (p.nests) return p.nests(p, settings);
    return p.type == ValueType::share || of_kinds.contains(key);
  });
}

bool spends_budget(const Settings& settings) {
  return chosen<Allocate>(settings).spends_budget() && selects_entries(settings) &&
         settings.count(keys::block) == 1;
}

void check_record(const std::string& text, const Settings& original,
                  const std::set<std::string>& typed, const Settings& settings) {
  const Require require{text, settings};
  for (const Parameter* p : parameters())
    if (p->type == ValueType::kind) only_from_preset(require, original, settings, p->key);
  const std::set<std::string> used = used_keys(settings);
  check_each_step(require, settings, used);
  check_scoring(require, settings);
  check_merge(require, settings);
  check_decode(require, settings);
  check_chunks(require, settings);
  check_budget(require, settings, used);
  check_blocks(require, settings);
  for (const std::string& key : typed) {
    if (used.contains(key)) continue;
    usage_error({"the chosen stages do not use " + key, "policy " + text,
                 key + "=" + settings.text(key), "only keys that take effect",
                 did_you_mean(key, {used.begin(), used.end()})});
  }
}

}  // namespace kvsim
