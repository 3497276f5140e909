#include "sim/replay/layer_replay.hpp"

#include "sim/policy/prepared_record.hpp"
#include "sim/replay/compression.hpp"

namespace kvsim {

std::vector<ReplayOutcome> outcome_of_each(const LayerKept& kept,
                                           const std::vector<Record>& records) {
  std::vector<ReplayOutcome> outcomes;
  for (size_t r = 0; r < kept.size(); ++r)
    for (size_t b = 0; b < kept[r].size(); ++b) {
      if (kept[r][b] == nullptr) continue;
      ReplayOutcome& outcome = outcomes.emplace_back();
      outcome.cells = {{static_cast<int>(r), static_cast<int>(b)}};
      outcome.kept = outcome.first_kept = kept[r][b];
      outcome.settings = &records[r].settings;
      outcome.merging = merges(records[r].settings);
      outcome.shares_defined = !moves_positions(records[r].settings);
    }
  return outcomes;
}

LayerKept LayerReplay::cells(const LayerKept& kept, const std::vector<Record>& records, bool decode,
                             bool repeat) {
  LayerKept own = kept;
  for (size_t r = 0; r < own.size(); ++r) {
    const auto& schedule = chosen<Schedule>(records[r].settings);
    for (auto& cell : own[r]) {
      const bool fixed = cell->places.empty();  // nothing ever leaves: the same by every schedule
      if ((schedule.decodes() && !fixed) != decode || (schedule.repeats() && !fixed) != repeat)
        cell = nullptr;
    }
  }
  return own;
}

LayerReplay::LayerReplay(LayerWork& work, PeriodicPolicies& periodic, const LayerKept& kept,
                         const std::vector<Record>& records, const PrefillOptions& options)
    : prefill_(work, cells(kept, records, false, false), records, options),
      decode_(work, cells(kept, records, true, false), records, options),
      of_periodic_(cells(kept, records, false, true)),
      periodic_(work, periodic, of_periodic_, records, options) {}

const ReplayOutcome& LayerReplay::outcome(size_t number) const {
  if (number < prefill_.outcomes().size()) return prefill_.outcomes()[number];
  number -= prefill_.outcomes().size();
  if (number < decode_.outcomes().size()) return decode_.outcomes()[number];
  return periodic_.outcomes()[number - decode_.outcomes().size()];
}

void LayerReplay::run(const std::function<void(const StepBlock&)>& sink,
                      const PeriodicReplay::EpochSink& epochs) {
  const auto numbered_from = [&](size_t first) {
    return [&sink, first](const StepBlock& block) {
      StepBlock moved = block;
      for (OutcomeBlock& view : moved.outcomes) view.outcome += static_cast<int>(first);
      sink(moved);
    };
  };
  prefill_.run(sink);
  decode_.run(numbered_from(prefill_.outcomes().size()));
  periodic_.run(numbered_from(prefill_.outcomes().size() + decode_.outcomes().size()), epochs);
}

namespace {

bool repeats(const Settings& settings) { return chosen<Schedule>(settings).repeats(); }

/// The layer as if the trace were `info`; elements are shared, not copied.
LayerTrace layer_seen_as(const LayerTrace& layer, const TraceInfo& info) {
  LayerTrace view = layer;
  view.info = &info;
  return view;
}

/// Budgets as counts: a later compression keeps as many entries as the first.
std::vector<Budget> counts(std::vector<Budget> budgets, const PreparedRecord& first) {
  for (size_t b = 0; b < budgets.size(); ++b) {
    budgets[b].is_ratio = false;
    budgets[b].amount = Decimal(first.budgets[b].entries);
  }
  return budgets;
}

/// The stretches of a periodic record, still without policies.
std::deque<Epoch> epochs_of(const Settings& settings, const TraceInfo& info) {
  std::deque<Epoch> epochs;
  const int64_t period = settings.count(keys::period);
  const int64_t last = info.query_position.back();
  for (int64_t t = info.prompt_len; t <= last; t += period) {
    Epoch& epoch = epochs.emplace_back();
    epoch.seen = epoch.replayed = info;
    epoch.seen.prompt_len = epoch.replayed.prompt_len = t;
    epoch.first_step = epoch.seen.first_step() - info.first_step();
    epoch.end = t + period;
    std::erase_if(epoch.replayed.query_position,
                  [&](int64_t position) { return position >= t + period; });
  }
  return epochs;
}

void cut(std::vector<std::vector<uint32_t>>& owners, int64_t entries) {
  for (auto& owner : owners)
    std::erase_if(owner, [&](uint32_t i) { return static_cast<int64_t>(i) >= entries; });
}

}  // namespace

void check_compressions(const std::vector<Record>& records, const std::vector<Budget>& budgets,
                        const TraceInfo& info, const std::vector<int>& layers,
                        const SideFiles& files) {
  for (const Record& record : records) {
    if (!repeats(record.settings)) continue;
    const std::vector<Budget> later = counts(budgets,
                                             Preparation(info, layers, budgets).prepare(record));
    for (const Epoch& epoch : epochs_of(record.settings, info))
      if (epoch.seen.prompt_len > info.prompt_len)
        check_records({record}, later, epoch.seen, layers, files);
  }
}

PeriodicPolicies::PeriodicPolicies(const PolicyRun& first, const TraceInfo& info,
                                   const std::vector<int>& layers, uint64_t seed,
                                   const SideFiles& files) {
  const std::vector<Record>& records = first.records();
  for (size_t r = 0; r < records.size(); ++r) {
    if (!repeats(records[r].settings)) continue;
    const std::vector<Budget> later = counts(
        first.budgets(), Preparation(info, layers, first.budgets()).prepare(records[r]));
    Planned& planned = planned_.emplace_back();
    planned.record = r;
    planned.epochs = epochs_of(records[r].settings, info);
    Record of_run = records[r];
    of_run.own_budgets.clear();  // `later` has them
    for (Epoch& epoch : planned.epochs)
      if (epoch.seen.prompt_len > info.prompt_len)
        epoch.policies = std::make_unique<PolicyRun>(std::vector<Record>{of_run}, later, epoch.seen,
                                                     layers, seed, files);
  }
}

bool PeriodicPolicies::needs_survey() const {
  return std::ranges::any_of(planned_, [](const Planned& planned) {
    return std::ranges::any_of(planned.epochs, [](const Epoch& epoch) {
      return epoch.policies && epoch.policies->needs_survey();
    });
  });
}

void PeriodicPolicies::survey(const LayerTrace& layer, Backend& backend) {
  for (Planned& planned : planned_)
    for (Epoch& epoch : planned.epochs) {
      if (!epoch.policies || !epoch.policies->needs_survey()) continue;
      const LayerTrace view = layer_seen_as(layer, epoch.seen);
      LayerWork work(view, backend);
      epoch.policies->survey(work);
    }
}

void PeriodicPolicies::finish_survey() {
  for (Planned& planned : planned_)
    for (Epoch& epoch : planned.epochs)
      if (epoch.policies) epoch.policies->finish_survey();
}

PeriodicReplay::PeriodicReplay(LayerWork& work, PeriodicPolicies& policies, const LayerKept& kept,
                               const std::vector<Record>& records, const PrefillOptions& options)
    : work_(work), policies_(policies), kept_(kept), records_(records), options_(options),
      outcomes_(outcome_of_each(kept, records)) {
  for (const auto& budgets : kept) number_.emplace_back(budgets.size(), -1);
  for (size_t number = 0; number < outcomes_.size(); ++number) {
    const ReplayCell cell = outcomes_[number].cells.front();
    number_[cell.record][cell.budget] = static_cast<int>(number);
  }
}

void PeriodicReplay::run(const std::function<void(const StepBlock&)>& sink,
                         const EpochSink& epochs) {
  if (outcomes_.empty()) return;
  Table<float> importance;  // of prompts and of what follows them
  PrefillOptions options = options_;
  if (options.importance == nullptr) {
    importance = norms_of_all(work_, options_.norm);
    options.importance = &importance;
  }
  for (PeriodicPolicies::Planned& planned : policies_.planned())
    for (Epoch& epoch : planned.epochs) replay_epoch(planned, epoch, options, sink, epochs);
}

void PeriodicReplay::replay_epoch(const PeriodicPolicies::Planned& planned, Epoch& epoch,
                                  const PrefillOptions& options,
                                  const std::function<void(const StepBlock&)>& sink,
                                  const EpochSink& epochs) {
  const size_t r = planned.record;
  if (std::ranges::all_of(number_[r], [](int number) { return number < 0; })) return;
  LayerKept kept = {kept_[r]};
  if (epoch.policies) {
    const LayerTrace seen = layer_seen_as(work_.trace(), epoch.seen);
    LayerWork work(seen, work_.backend());
    kept = epoch.policies->select(work);
    for (size_t b = 0; b < kept[0].size(); ++b)
      if (number_[r][b] < 0) kept[0][b] = nullptr;
  }
  const LayerTrace replayed = layer_seen_as(work_.trace(), epoch.replayed);
  LayerWork work(replayed, work_.backend());
  const std::vector<Record> record = {records_[r]};
  PrefillOptions of_epoch = options;
  if (of_epoch.output_steps) {  // those of the epoch, counted from its first step
    std::erase_if(*of_epoch.output_steps, [&](int64_t step) {
      return step < epoch.first_step || step >= epoch.first_step + epoch.replayed.steps();
    });
    for (int64_t& step : *of_epoch.output_steps) step -= epoch.first_step;
  }
  PrefillReplay replay(work, kept, record, of_epoch);
  if (epoch.replayed.steps() > 0) {
    replay.run([&](const StepBlock& block) {
      StepBlock moved{
          epoch.first_step + block.first_step, block.steps, nullptr, {}, block.output_steps};
      if (moved.output_steps)
        for (int64_t& step : *moved.output_steps) step += epoch.first_step;
      for (OutcomeBlock view : block.outcomes)
        for (const ReplayCell cell : replay.outcomes()[view.outcome].cells) {
          OutcomeBlock& own = moved.outcomes.emplace_back(view);
          own.outcome = number_[r][cell.budget];
        }
      sink(moved);
    });
    if (epochs) epochs(work, replay, r, epoch.first_step);
  }
  for (const ReplayOutcome& seen : replay.outcomes())
    for (const ReplayCell cell : seen.cells) note(seen, outcomes_[number_[r][cell.budget]], epoch);
}

/// Reports the state of an outcome after the last compression so far.
void PeriodicReplay::note(const ReplayOutcome& seen, ReplayOutcome& outcome,
                          const Epoch& epoch) const {
  if (!epoch.policies) outcome.first_kept = seen.kept;
  outcome.most_slots.resize(seen.kept->owners.size(), 0);
  for (size_t o = 0; o < outcome.most_slots.size(); ++o)
    outcome.most_slots[o] = std::max(outcome.most_slots[o],
                                     std::ssize(seen.kept->owners[o]) + epoch.replayed.steps());
  auto kept = std::make_shared<KeptSets>(*seen.kept);
  cut(kept->owners, work_.entries());
  cut(kept->merged, work_.entries());
  cut(kept->own, work_.entries());
  cut(kept->guarded, work_.entries());
  outcome.kept = kept;
  outcome.merge_count = seen.merge_count;
  outcome.undefined_scales += seen.undefined_scales;
  outcome.scales.insert(outcome.scales.end(), seen.scales.begin(), seen.scales.end());
  for (const PairMerge& pair : seen.pairs) {  // they end where the full cache is restored
    outcome.pairs.push_back(pair);
    outcome.pairs.back().last = epoch.end - 1;
  }
}

}  // namespace kvsim
