#include "sim/replay/prefill.hpp"

#include <xxhash.h>

#include "sim/replay/compression.hpp"

namespace kvsim {
namespace {

uint64_t hash_of(const OwnerSets& owners) {
  uint64_t hash = 0;
  for (const auto& owner : owners)
    hash = XXH3_64bits_withSeed(owner.data(), owner.size() * sizeof(uint32_t), hash);
  return hash;
}

int64_t size_of(const OwnerSets& owners) {
  int64_t size = 0;
  for (const auto& owner : owners) size += std::ssize(owner);
  return size;
}

/// Is every owner's set of `inner` within that of `outer`?
bool nested(const OwnerSets& inner, const OwnerSets& outer) {
  for (size_t o = 0; o < inner.size(); ++o)
    if (inner[o].size() > outer[o].size()) return false;
  for (size_t o = 0; o < inner.size(); ++o)
    if (!std::includes(outer[o].begin(), outer[o].end(), inner[o].begin(), inner[o].end()))
      return false;
  return true;
}

/// Are the kept entries changed in the same way under both settings?
bool same_change(const Settings& a, const Settings& b) {
  const Quantize& rounding = quantizer(a);
  return moves_positions(a) == moves_positions(b) && &rounding == &quantizer(b) &&
         std::ranges::all_of(rounding.info().keys,
                             [&](const std::string& key) { return a.text(key) == b.text(key); });
}

/// Every entry of each owner but the guarded ones; or of a list, when one is given.
std::shared_ptr<const OwnerSets> without(const OwnerSets* from, const OwnerSets& guarded,
                                         int64_t entries) {
  auto rest = std::make_shared<OwnerSets>(guarded.size());
  const auto all = ascending<uint32_t>(entries);
  for (size_t o = 0; o < guarded.size(); ++o) {
    const auto& source = from == nullptr ? all : (*from)[o];
    std::ranges::set_difference(source, guarded[o], std::back_inserter((*rest)[o]));
  }
  return rest;
}

/// Entries within some ranges of each owner's set; of every entry when no set is given.
std::shared_ptr<const OwnerSets> within(const OwnerSets* from, size_t owners,
                                        const std::vector<Range>& ranges) {
  auto part = std::make_shared<OwnerSets>(owners);
  for (size_t o = 0; o < owners; ++o) {
    for (const Range range : ranges) {
      const auto begin = static_cast<uint32_t>(range.begin), end = static_cast<uint32_t>(range.end);
      if (from == nullptr) {
        for (uint32_t i = begin; i < end; ++i) (*part)[o].push_back(i);
      } else {
        const auto first = std::ranges::lower_bound((*from)[o], begin);
        (*part)[o].insert((*part)[o].end(), first, std::ranges::lower_bound((*from)[o], end));
      }
    }
  }
  return part;
}

/// Adds a table [Hq][steps] of sums, over its heads, to a row.
void add_heads(const Table<double>& heads, std::span<double> row) {
  for (int64_t h = 0; h < heads.rows(); ++h)
    for (int64_t s = 0; s < std::ssize(row); ++s) row[s] += heads(h, s);
}

Table<double> added(const Table<double>& a, const Table<double>& b) {
  Table<double> sum = a;
  for (size_t k = 0; k < sum.values().size(); ++k) sum.values()[k] += b.values()[k];
  return sum;
}

/// Copies columns of a part of the steps into a table over all of them.
void append(const Table<double>& part, int64_t first, Table<double>& whole) {
  for (int64_t r = 0; r < part.rows(); ++r)
    std::ranges::copy(part.row(r), whole.row(r).begin() + first);
}

void append(const RetainedSums& part, int64_t first, RetainedSums& whole) {
  for (const auto sums : {&RetainedSums::kept, &RetainedSums::total})
    for (const auto table : {&ShareSums::attention, &ShareSums::importance})
      append(part.*sums.*table, first, whole.*sums.*table);
  append(part.part_kept, first, whole.part_kept);
  append(part.part_total, first, whole.part_total);
}

RetainedSums no_sums(int64_t heads, int64_t steps, int64_t parts) {
  const Table<double> none(heads, steps), apart(parts, steps);
  return {{none, none, {}}, {none, none, {}}, apart, apart, {}};
}

}  // namespace

int PlanBuilder::add(std::shared_ptr<const OwnerSets> owners, bool per_query_head, bool outputs) {
  const uint64_t hash = hash_of(*owners);
  for (size_t handle = 0; handle < wanted_.size(); ++handle) {
    Wanted& known = wanted_[handle];
    if (known.hash == hash && known.per_query_head == per_query_head && *known.owners == *owners) {
      known.outputs |= outputs;
      return static_cast<int>(handle);
    }
  }
  const int64_t size = size_of(*owners);
  wanted_.push_back({std::move(owners), per_query_head, outputs, hash, size});
  return static_cast<int>(wanted_.size()) - 1;
}

PlanBuilder::Plans PlanBuilder::build() const {
  Plans result;
  result.set.assign(wanted_.size(), Plans::kEverything);
  auto order = ascending<size_t>(std::ssize(wanted_));
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return wanted_[a].size < wanted_[b].size; });

  // Ascending by size, each set goes on top of the largest set that it contains.
  std::vector<std::vector<size_t>> chains;
  for (const size_t handle : order) {
    const Wanted& set = wanted_[handle];
    if (set.size == entries_ * std::ssize(*set.owners)) continue;
    std::vector<size_t>* best = nullptr;
    for (auto& chain : chains) {
      const Wanted& last = wanted_[chain.back()];
      if (last.per_query_head != set.per_query_head || last.outputs != set.outputs) continue;
      if (best != nullptr && last.size <= wanted_[best->back()].size) continue;
      if (nested(*last.owners, *set.owners)) best = &chain;
    }
    if (best != nullptr) {
      best->push_back(handle);
    } else {
      chains.push_back({handle});
    }
  }

  int next_set = 0;
  std::vector<std::pair<size_t, size_t>> owners;  // of all plans
  for (const auto& chain : chains) {
    ReplayPlan plan;
    const Wanted& first = wanted_[chain.front()];
    plan.per_query_head = first.per_query_head;
    plan.masses_only = !first.outputs;
    plan.owners.resize(first.owners->size());
    for (size_t o = 0; o < plan.owners.size(); ++o) owners.emplace_back(result.plans.size(), o);
    for (const size_t handle : chain) result.set[handle] = next_set++;
    result.plans.push_back(std::move(plan));
  }
  parallel_for(std::ssize(owners), [&](int64_t at) {
    const auto [plan, o] = owners[at];
    static const std::vector<uint32_t> kNothing;
    const std::vector<uint32_t>* below = &kNothing;
    for (const size_t handle : chains[plan]) {
      const std::vector<uint32_t>& set = (*wanted_[handle].owners)[o];
      KeptChain& kept = result.plans[plan].owners[o];
      std::ranges::set_difference(set, *below, std::back_inserter(kept.order));
      kept.end.push_back(std::ssize(kept.order));
      below = &set;
    }
  });
  return result;
}

/// The kept sets of an owner list without a copy: shares the life of `kept`.
std::shared_ptr<const OwnerSets> owners_of(const std::shared_ptr<const KeptSets>& kept) {
  return {kept, &kept->owners};
}

struct PrefillReplay::WholeRun {
  std::vector<float> z;                 ///< [Hq][T][dv]
  std::map<size_t, RetainedSums> sums;  ///< by outcome
  Table<double> later_attention;        ///< [Hq][T]
  Table<double> later_importance;
};

struct PrefillReplay::Attended {
  Attended(LayerWork& work, size_t values) : attention(work), full(work), delta(values) {}
  SlotAttention attention;
  FullAttention full;
  SlotSoftmax softmax;
  std::vector<float> delta;  ///< [Hq][T][dv]
  Buffer<float> part;        ///< the same of some steps
};

PrefillReplay::PrefillReplay(LayerWork& work, const LayerKept& kept,
                             const std::vector<Record>& records, const PrefillOptions& options)
    : work_(work), options_(options), builder_(work.entries()) {
  for (size_t r = 0; r < kept.size(); ++r)
    for (size_t b = 0; b < kept[r].size(); ++b) {
      if (kept[r][b] == nullptr) continue;
      add_cell({static_cast<int>(r), static_cast<int>(b)}, kept[r][b], records[r].settings);
    }
  plans_ = builder_.build();
  if (options.importance != nullptr) {
    importance_ = options.importance;
  } else if (options.scope == Scope::all) {
    own_importance_ = norms_of_all(work, options.norm);
    importance_ = &own_importance_;
  } else {
    importance_ = &work.projected_norms(options.norm);
  }
}

void PrefillReplay::add_cell(ReplayCell cell, const std::shared_ptr<const KeptSets>& kept,
                             const Settings& settings) {
  ReplayOutcome fresh;
  fresh.cells = {cell};
  fresh.kept = kept;
  fresh.tied = {kept->tied};
  fresh.settings = &settings;
  fresh.changed = !kept->chosen_per_step && changes_entries(work_, *kept, settings);
  fresh.shares_defined = !moves_positions(settings);
  fresh.merging = fresh.changed && merges(settings);
  ask_for_sets(fresh);
  for (ReplayOutcome& known : outcomes_) {
    if (known.kept->chosen_per_step || kept->chosen_per_step) continue;
    if (known.merging || fresh.merging) continue;  // what is merged depends on more than the sets
    if (known.kept_handle != fresh.kept_handle || known.changed != fresh.changed) continue;
    if (known.share_handle != fresh.share_handle || known.total_handle != fresh.total_handle)
      continue;
    if (fresh.changed && !same_change(*known.settings, settings)) continue;
    known.cells.push_back(cell);
    known.tied.push_back(kept->tied);
    return;
  }
  outcomes_.push_back(std::move(fresh));
}

void PrefillReplay::ask_for_sets(ReplayOutcome& outcome) {
  const KeptSets& kept = *outcome.kept;
  const bool of_heads = kept.per_query_head;
  const bool guards = std::any_of(kept.guarded.begin(), kept.guarded.end(),
                                  [](const auto& owner) { return !owner.empty(); });
  if (!kept.chosen_per_step) {
    outcome.kept_handle = builder_.add(owners_of(outcome.kept), of_heads, !outcome.changed);
    outcome.share_handle = outcome.kept_handle;
  }
  std::shared_ptr<const OwnerSets> share = owners_of(outcome.kept), total;
  if (options_.scope == Scope::evictable && guards) {
    total = without(nullptr, kept.guarded, work_.entries());
    outcome.total_handle = builder_.add(total, of_heads, false);
    if (!kept.chosen_per_step) {
      share = without(&kept.owners, kept.guarded, work_.entries());
      outcome.share_handle = builder_.add(share, of_heads, false);
    }
  }
  for (const std::vector<Range>& part : options_.parts) {
    const size_t owners = kept.owners.size();
    outcome.part_total_handles.push_back(
        builder_.add(within(total.get(), owners, part), of_heads, false));
    if (kept.chosen_per_step) continue;
    outcome.part_share_handles.push_back(
        builder_.add(within(share.get(), owners, part), of_heads, false));
  }
}

bool PrefillReplay::needs_second_pass() const {
  return std::any_of(outcomes_.begin(), outcomes_.end(), [](const ReplayOutcome& outcome) {
    return outcome.changed || outcome.kept->chosen_per_step;
  });
}

void PrefillReplay::run(const Sink& sink) {
  ReplayRequest request;
  request.plans = plans_.plans;
  request.importance = importance_->data();
  request.importance_columns = importance_->columns();
  request.later_importance = options_.scope == Scope::all;
  if (!wants_all_outputs()) request.output_steps = options_.output_steps;
  WholeRun whole;
  work_.backend().replay(work_.trace(), request,
                         [&](const ReplayBlock& block) { on_block(block, whole, sink); });
  if (!needs_second_pass()) return;
  run_per_step(whole, sink);
  run_changed(whole, sink);
}

double PrefillReplay::flops() const {
  const auto steps = static_cast<double>(work_.info().steps());
  const auto heads = static_cast<double>(work_.query_heads());
  const auto width = static_cast<double>(work_.value_dim());
  const auto keys = static_cast<double>(work_.entries());
  const double outputs = wants_all_outputs() ? steps
                                             : static_cast<double>(options_.output_steps->size());
  double sum = heads * keys * width;  // of one step's outputs
  for (const ReplayPlan& plan : plans_.plans) {
    if (plan.masses_only) continue;
    const double sharing = plan.per_query_head ? 1 : work_.group_size();
    for (const KeptChain& owner : plan.owners)
      sum += sharing * static_cast<double>(owner.end.back()) * width;
  }
  return 2 * (steps * heads * keys * static_cast<double>(work_.trace().k.dim(2)) + outputs * sum);
}

RetainedSums PrefillReplay::sums_of(const ReplayOutcome& outcome, const ReplayBlock& block) const {
  const auto set_of = [&](int handle) {
    return handle < 0 ? PlanBuilder::Plans::kEverything : plans_.set[handle];
  };
  const int kept = set_of(outcome.share_handle);
  const int total = set_of(outcome.total_handle);
  const auto attention = [&](int set) -> const Table<double>& {
    return set < 0 ? block.prompt_attention : block.kept_attention[set];
  };
  const auto importance = [&](int set) -> const Table<double>& {
    return set < 0 ? block.prompt_importance : block.kept_importance[set];
  };
  const auto parts = [&](const std::vector<int>& handles) {
    Table<double> sums(std::ssize(options_.parts), block.steps);
    for (int64_t part = 0; part < std::ssize(handles); ++part)
      add_heads(importance(set_of(handles[part])), sums.row(part));
    return sums;
  };
  RetainedSums sums = {{attention(kept), importance(kept), {}},
                       {attention(total), importance(total), {}},
                       parts(outcome.part_share_handles),
                       parts(outcome.part_total_handles),
                       {}};
  if (options_.scope == Scope::all)
    for (ShareSums* part : {&sums.kept, &sums.total}) {
      part->attention = added(part->attention, block.later_attention);
      part->importance = added(part->importance, block.later_importance);
    }
  return sums;
}

void PrefillReplay::on_block(const ReplayBlock& block, WholeRun& whole, const Sink& sink) const {
  const int64_t heads = work_.query_heads();
  const int64_t steps = work_.info().steps();
  const int64_t width = work_.value_dim();
  const bool second_pass = needs_second_pass();
  if (second_pass && whole.z.empty()) {
    whole.z.resize(heads * steps * width);
    whole.later_attention = whole.later_importance = Table<double>(heads, steps);
  }
  if (second_pass) {
    append(block.later_attention, block.first_step, whole.later_attention);
    append(block.later_importance, block.first_step, whole.later_importance);
    for (int64_t h = 0; h < heads; ++h)
      std::copy_n(block.z.begin() + h * block.steps * width, block.steps * width,
                  whole.z.begin() + (h * steps + block.first_step) * width);
  }
  StepBlock out{block.first_step, block.steps, &block, {}, block.output_steps};
  std::vector<RetainedSums> sums(outcomes_.size());  // outlives the pointers in `out`
  parallel_for(std::ssize(outcomes_), [&](int64_t o) { sums[o] = sums_of(outcomes_[o], block); });
  for (size_t o = 0; o < outcomes_.size(); ++o) {
    const ReplayOutcome& outcome = outcomes_[o];
    if (outcome.changed || outcome.kept->chosen_per_step) {
      const auto parts = std::ssize(options_.parts);
      auto& kept = whole.sums.try_emplace(o, no_sums(heads, steps, parts)).first->second;
      append(sums[o], block.first_step, kept);
      continue;
    }
    OutcomeBlock view;
    view.outcome = static_cast<int>(o);
    if (outcome.shares_defined) view.sums = &sums[o];
    const int set = plans_.set[outcome.kept_handle];
    if (set >= 0) view.delta = block.delta[set];
    out.outcomes.push_back(view);
  }
  sink(out);
}

void PrefillReplay::run_per_step(const WholeRun& whole, const Sink& sink) {
  // Each record walks the attention once for all its budgets.
  std::map<const Settings*, std::vector<size_t>> records;
  for (size_t o = 0; o < outcomes_.size(); ++o)
    if (outcomes_[o].kept->chosen_per_step) records[outcomes_[o].settings].push_back(o);
  for (const auto& [settings, chosen] : records) {
    std::vector<std::shared_ptr<const KeptSets>> kept;
    for (const size_t o : chosen) kept.push_back(outcomes_[o].kept);
    const PerStepInput input{importance_->data(), importance_->columns(), &whole.z,
                             options_.scope == Scope::evictable, options_.parts};
    std::vector<PerStepResult> results = replay_per_step(work_, *settings, kept, input);
    for (size_t x = 0; x < chosen.size(); ++x) {
      PerStepResult& result = results[x];
      RetainedSums sums = whole.sums.at(chosen[x]);
      sums.kept = std::move(result.kept);
      sums.part_kept = std::move(result.part_kept);
      if (options_.scope == Scope::all) {
        sums.kept.attention = added(sums.kept.attention, whole.later_attention);
        sums.kept.importance = added(sums.kept.importance, whole.later_importance);
      }
      // From here on the sets are those of the last step: what is reported as kept.
      outcomes_[chosen[x]].kept = std::make_shared<const KeptSets>(std::move(result.last));
      OutcomeBlock view;
      view.outcome = static_cast<int>(chosen[x]);
      view.sums = &sums;
      view.delta = result.delta.data();
      sink({0, work_.info().steps(), nullptr, {view}});
    }
  }
}

LayerSlots PrefillReplay::changed_slots(ReplayOutcome& outcome, FirstEstimates& estimates,
                                        std::vector<SlotCache>& merged) {
  const Settings& settings = *outcome.settings;
  LayerSlots slots;
  if (outcome.merging) {
    MergeMemory memory;
    Compressed compressed = compress(work_, *outcome.kept, settings, options_.seed, memory,
                                     estimates, options_.pairs);
    slots = as_slots(compressed.owners, compressed.per_query_head, settings);
    outcome.kept = kept_after(compressed.owners, *outcome.kept, work_.entries());
    outcome.merge_count = merged_slots(compressed.owners);
    outcome.undefined_scales = compressed.undefined_scales;
    outcome.scales = std::move(compressed.scales);
    outcome.pairs = std::move(compressed.pairs);
    merged = std::move(compressed.owners);
  } else {
    slots = slots_of(work_, *outcome.kept);
  }
  return slots;
}

/// Outputs of slots at all later steps, with a look at merged ones.
void PrefillReplay::attend_watched(const LayerSlots& slots, const std::vector<SlotCache>& merged,
                                   const WholeRun& whole, Attended& attended,
                                   MergeTally& tally) const {
  MergeWatcher watcher(work_, merged, slots, *importance_, whole.z, attended.full, tally);
  const int64_t all = work_.info().steps(), width = work_.value_dim();
  const int64_t most = attended.full.most_steps();
  float* const part = attended.part.reserve(work_.query_heads() * most * width);
  for (int64_t first = 0; first < all; first += most) {
    const int64_t steps = std::min(most, all - first);
    attended.attention.run(slots, first, steps, part, &attended.softmax);
    watcher.see(first, steps, attended.softmax);
    for (int64_t h = 0; h < work_.query_heads(); ++h)
      std::copy_n(part + h * steps * width, steps * width,
                  attended.delta.begin() + (h * all + first) * width);
  }
}

void PrefillReplay::run_changed(const WholeRun& whole, const Sink& sink) {
  const int64_t steps = work_.info().steps();
  if (std::ranges::none_of(outcomes_, &ReplayOutcome::changed)) return;
  Attended attended(work_, whole.z.size());
  FirstEstimates estimates;
  std::vector<float>& delta = attended.delta;
  for (size_t o = 0; o < outcomes_.size(); ++o) {
    ReplayOutcome& outcome = outcomes_[o];
    if (!outcome.changed) continue;
    std::vector<SlotCache> merged;
    LayerSlots slots = changed_slots(outcome, estimates, merged);
    const Quantize& quantize = quantizer(*outcome.settings);
    const bool moves = moves_positions(*outcome.settings);  // after everything else
    std::vector<float> rounding;
    if (quantize.changes_entries()) {
      LayerSlots unrounded = slots;
      if (moves) rotate_to_cache_positions(work_, *outcome.kept, unrounded);
      rounding.resize(delta.size());
      attended.attention.run(unrounded, 0, steps, rounding.data());
      for (size_t i = 0; i < slots.owners.size(); ++i)
        quantize.apply(*outcome.settings, {.k = slots.owners[i].k,
                                           .v = slots.owners[i].v,
                                           .positions = outcome.kept->owners[i],
                                           .rope = &work_.rotation()});
    }
    if (moves) rotate_to_cache_positions(work_, *outcome.kept, slots);
    MergeTally tally(work_.query_heads(), steps, options_.slot_changes);
    if (outcome.merge_count > 0) {
      attend_watched(slots, merged, whole, attended, tally);
    } else {
      attended.attention.run(slots, 0, steps, delta.data());
    }
    for (size_t x = 0; x < rounding.size(); ++x) rounding[x] = delta[x] - rounding[x];
    for (size_t x = 0; x < delta.size(); ++x) delta[x] -= whole.z[x];
    OutcomeBlock view;
    view.outcome = static_cast<int>(o);
    if (outcome.shares_defined) view.sums = &whole.sums.at(o);
    view.delta = delta.data();
    if (!rounding.empty()) view.rounding = rounding.data();
    if (outcome.merge_count > 0) view.merges = &tally;
    sink({0, steps, nullptr, {view}});
  }
}

}  // namespace kvsim
