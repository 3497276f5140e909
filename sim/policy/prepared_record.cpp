#include "sim/policy/prepared_record.hpp"

#include <fmt/format.h>

namespace kvsim {

namespace {

void insert_keys(std::initializer_list<const Kind*> kinds, std::set<std::string>& keys) {
  for (const Kind* kind : kinds) {
    keys.insert(kind->info().stage);
    keys.insert(kind->info().keys.begin(), kind->info().keys.end());
  }
}

/// Settings that scores depend on up to `group`. Which queries observe is resolved: in `segments`.
std::set<std::string> read_by_grouping(const Settings& settings) {
  std::set<std::string> read = {"queries", "granularity", "order", "join"};
  insert_keys({&chosen<Indicator>(settings), &chosen<Aggregate>(settings),
               &chosen<Smooth>(settings), &chosen<Group>(settings), &chosen<Join>(settings)},
              read);
  return read;
}

std::vector<int> skipped_layers(const Settings& settings, int model_layers) {
  std::vector<int> skipped;
  for (const std::string& text : settings.list(keys::skip_layers)) {
    const int layer = std::stoi(text);
    skipped.push_back(layer < 0 ? model_layers + layer : layer);  // -1 is the last
  }
  return skipped;
}

}  // namespace

Settings ScorePlan::read_by_scoring(const Settings& record, bool watches) {
  std::set<std::string> read = read_by_grouping(record);
  read.insert({"weight_epsilon", "block", "block_score"});
  insert_keys({&chosen<Memory>(record), &chosen<Redundancy>(record), &chosen<Prior>(record),
               &chosen<Weight>(record), &chosen<Normalize>(record), &chosen<Union>(record)},
              read);
  if (watches) insert_keys({&chosen<Allocate>(record)}, read);
  return record.only(read);
}

std::string ScorePlan::key() const {
  return fmt::format("{:d}{:d}{:d}{:d}{:d}{}", wants_unweighted, wants_mass, wants_deviation,
                     wants_statistic, wants_token_class, key_of(settings));
}

std::string ScorePlan::grouping_key() const {
  return key_of(settings.only(read_by_grouping(settings)));
}

std::string ScorePlan::key_of(const Settings& read) const {
  std::string text;
  for (const auto& [name, value] : read.values()) text += name + "=" + value + "|";
  for (const Segment& s : segments) {
    text += fmt::format("|{}-{} {}-{} {} {}+{}:", s.range.begin, s.range.end, s.candidates.begin,
                        s.candidates.end, s.window, s.rows_before, s.rows_after);
    for (size_t j = 0; j < s.positions.size(); ++j)  // where runs of positions begin
      if (j == 0 || s.positions[j] != s.positions[j - 1] + 1)
        text += fmt::format("{}@{},", s.positions[j], j);
    text += std::to_string(s.positions.size());
    if (s.probe >= 0) text += fmt::format("|probe {}:", s.probe);
    for (const int64_t token : s.probe_tokens) text += fmt::format("{},", token);
  }
  for (const int64_t slots : free_slots) text += fmt::format("|{}", slots);
  text += fmt::format("|{}", dropped);
  return text;
}

std::vector<uint8_t> listed_entries(const std::vector<Range>& ranges, int64_t n) {
  std::vector<uint8_t> listed(n, 0);
  for (const Range& range : ranges)
    std::fill(listed.begin() + range.begin, listed.begin() + range.end, uint8_t{1});
  return listed;
}

bool allocates_by_unweighted(const Settings& settings) {
  return settings.word<AllocateScore>(keys::allocate_score) == AllocateScore::unweighted;
}

int64_t budget_entries(const Settings& settings, const Budget& budget, int64_t n) {
  if (!budget.is_ratio || !rounds_like_kvpress(settings)) return budget.entries(n);
  const double r = budget.amount.one_minus().value();
  return std::max<int64_t>(1, static_cast<int64_t>(static_cast<double>(n) * (1.0 - r)));
}

std::optional<Record> unconstrained(const Record& record) {
  if (!chosen<Constrain>(record.settings).compares_with_unconstrained(record.settings))
    return std::nullopt;
  Record plain = record;
  plain.settings.set("constrain", "none");
  return plain;
}

PreparedRecord Preparation::prepare(const Record& record) {
  PreparedRecord p;
  p.settings = record.settings;
  p.title = record.canonical();
  const auto& constrain = p.stage<Constrain>();
  p.rescored = constrain.cuts() && !constrain.keeps_scores(p.settings);
  p.owners = per_query_head(p.settings) ? info_.num_query_heads : info_.num_kv_heads;
  const int64_t n = info_.prompt_len;
  const auto skipped = skipped_layers(p.settings, info_.num_layers);
  for (int layer : layers_)
    if (!contains(skipped, layer)) p.layers.push_back(layer);
  p.whitelist = resolve_spans(p.settings.list(keys::whitelist), info_.spans, n);
  p.ranges = constrain.segments(p.settings, info_.spans, n);

  const auto& smooth = p.stage<Smooth>();
  const auto free_slots = [&](const PreparedBudget& b) {
    return smooth.drift() == Drift::none ? 0 : std::max<int64_t>(b.entries - b.window, 0);
  };
  std::map<int64_t, std::vector<int64_t>> slots_of_window;  // K of the variants, per m
  p.asked = record.budgets(budgets_);
  for (const Budget& budget : p.asked) {
    const PreparedBudget& b = p.budgets.emplace_back(prepare(p, budget));
    auto& slots = slots_of_window[b.window];
    if (!b.keeps_all && !contains(slots, free_slots(b))) slots.push_back(free_slots(b));
  }
  for (PreparedBudget& b : p.budgets) {
    if (b.keeps_all) continue;
    ScorePlan plan = plan_of(p, b.window);
    plan.free_slots = slots_of_window[b.window];
    const auto* const following = p.stage<Indicator>().as<FollowsBudget>();
    if (following && following->follows_budget(p.settings)) plan.dropped = b.dropped;
    b.variant = static_cast<size_t>(std::ranges::find(plan.free_slots, free_slots(b)) -
                                    plan.free_slots.begin());
    b.plan = share_plan(std::move(plan));
  }
  return p;
}

PreparedBudget Preparation::prepare(const PreparedRecord& record, const Budget& budget) const {
  const int64_t n = info_.prompt_len;
  PreparedBudget b;
  b.entries = budget_entries(record.settings, budget, n);
  const bool fills_up = record.stage<Schedule>().decodes() && !budget.is_ratio;
  b.places = fills_up ? std::max(n, budget.entries(info_.total_len)) : n;
  b.window = record.stage<Queries>().window(record.settings, b.entries, n);
  b.keeps_all = b.entries >= n || record.stage<Allocate>().keeps_everything();
  b.is_count = !budget.is_ratio;
  b.dropped = budget.is_ratio ? budget.amount.one_minus().value()
                              : 1 - static_cast<double>(b.entries) / static_cast<double>(n);
  const int64_t others = n - b.window;
  b.mass_cap = (budget.is_ratio ? budget.amount.floor_times(others) : others * b.entries / n) -
               b.window;
  if (budget.is_ratio)
    b.kvpress_kept = (1.0 - budget.amount.one_minus().value()) * static_cast<double>(n);
  return b;
}

/// All but the variants.
ScorePlan Preparation::plan_of(const PreparedRecord& record, int64_t window) const {
  const auto& allocate = record.stage<Allocate>();
  const auto& stage1 = record.stage<Stage1>();
  const Settings read = ScorePlan::read_by_scoring(record.settings, allocate.watches());
  return {
      .settings = read,
      .steps = ScoringSteps(read),
      .segments = segments(record, window),
      .wants_unweighted = stage1.uses_unweighted() || allocates_by_unweighted(record.settings),
      .wants_mass = stage1.uses_mass(),
      .wants_deviation = record.settings.real(keys::std_keep) > 0,
      .wants_statistic = allocate.watches(),
      .wants_token_class = stage1.uses_token_classes() || allocate.uses_token_classes(),
      .for_survey = (allocate.across_layers() && allocate.needs_scores()) || unites_layers(read),
      .layers = {record.layers.begin(), record.layers.end()}};
}

size_t Preparation::share_plan(ScorePlan plan) {
  const auto [at, fresh] = by_key_.try_emplace(plan.key(), plans_.size());
  if (fresh) {
    plans_.push_back(std::move(plan));
  } else {
    plans_[at->second].for_survey |= plan.for_survey;
    plans_[at->second].layers.merge(plan.layers);
  }
  return at->second;
}

std::vector<Segment> Preparation::segments(const PreparedRecord& record, int64_t window) const {
  const auto& queries = record.stage<Queries>();
  std::vector<Segment> segments;
  const std::vector<Range> whole = {{0, info_.prompt_len}};
  const std::vector<Range>& ranges = record.rescored ? record.ranges : whole;
  const auto count = std::ssize(ranges);
  for (int64_t k = 0; k < count; ++k) {
    Segment segment;
    segment.range = ranges[k];
    const int64_t part = k + 1 < count ? window / count : window - (count - 1) * (window / count);
    queries.observe(record.settings, std::max<int64_t>(1, part), info_, segment);
    if (record.stage<Join>().joins()) observe_with_probe(record.settings, info_, segment);
    segments.push_back(std::move(segment));
  }
  return segments;
}

}  // namespace kvsim
