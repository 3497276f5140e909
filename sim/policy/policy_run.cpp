#include "sim/policy/policy_run.hpp"

#include <chrono>

#include "sim/policy/prepared_record.hpp"
#include "sim/policy/scoring.hpp"
#include "sim/policy/selection.hpp"
#include "sim/stages/merge/merge.hpp"

namespace kvsim {
namespace {

constexpr int kDigitBits = 11;
constexpr int kDigits = 6;  // 6 * 11 >= 64
constexpr size_t kValues = size_t{1} << kDigitBits;

struct Item {
  uint64_t key;  // smaller for larger scores
  uint32_t entry;
};

size_t digit(uint64_t key, int number) { return key >> (number * kDigitBits) & (kValues - 1); }

/// Sorts by key, equal ones as they come.
void radix_sort(std::vector<Item>& items) {
  std::vector<Item> other(items.size());
  std::vector<std::array<uint32_t, kValues>> counts(kDigits);
  for (auto& count : counts) count.fill(0);
  for (const Item& item : items)
    for (int d = 0; d < kDigits; ++d) ++counts[d][digit(item.key, d)];
  for (int d = 0; d < kDigits; ++d) {
    auto& count = counts[d];
    if (count[digit(items.front().key, d)] == items.size()) continue;  // all the same
    uint32_t position = 0;
    for (uint32_t& value : count) position += std::exchange(value, position);
    for (const Item& item : items) other[count[digit(item.key, d)]++] = item;
    items.swap(other);
  }
}

/// Scores of a layer, by (plan, variant).
using ScoredPlans = std::map<std::pair<size_t, size_t>, std::shared_ptr<ScoredLayer>>;

/// Makes the rankings there are, unless they were made before.
void rank_entries(ScoredLayer& scored, bool tie_by_raw) {
  if (scored.ranking.contains(tie_by_raw)) return;
  scored.ranking[tie_by_raw] = rank(scored.score, scored.raw, tie_by_raw, scored.candidate);
  if (!scored.unweighted.empty())
    scored.ranking_unweighted[tie_by_raw] = rank(scored.unweighted, scored.unweighted_raw,
                                                 tie_by_raw, scored.candidate);
}

std::shared_ptr<KeptSets> everything(int64_t owners, int64_t entries, bool of_query_heads) {
  auto kept = std::make_shared<KeptSets>();
  kept->per_query_head = of_query_heads;
  kept->owners.assign(owners, ascending<uint32_t>(entries));
  kept->tied.assign(owners, 0);
  kept->guarded.assign(owners, {});
  return kept;
}

/// Merging that replaces selection, or comes before it: every owner's entries become sets, one slot
/// each.
void choose_sets(const LayerWork& work, const PreparedRecord& record, const ScoredLayer& scored,
                 const Ranking& ranking, const Selection& selecting, KeptSets& kept) {
  const auto& merge = record.stage<Merge>();
  const int64_t sharing = std::ssize(kept.owners) / work.kv_heads();
  kept.sets.resize(kept.owners.size());
  parallel_for(std::ssize(kept.owners), [&](int64_t owner) {
    const Table<float> keys = work.keys(static_cast<int>(owner / sharing));
    const ClusterRequest request{keys.data(), keys.columns(), scored.score.row(owner),
                                 kept.places[owner]};
    const Guaranteed sure = selecting.guaranteed(owner);
    Clusters clusters = merges_first(record.settings)
                            ? merge_first({request, ranking.order[owner], sure.entries,
                                           record.settings.real(keys::merge_threshold)})
                            : merge.cluster(request);
    auto order = ascending<size_t>(std::ssize(clusters.pivot));
    std::ranges::sort(order, {}, [&](size_t s) { return clusters.pivot[s]; });
    for (const size_t s : order) {
      kept.owners[owner].push_back(clusters.pivot[s]);
      kept.sets[owner].push_back(std::move(clusters.sets[s]));
    }
    kept.guarded[owner] = std::move(clusters.guarded);
    kept.tied[owner] = 0;
  });
}

using Sets = std::vector<std::vector<uint32_t>>;  // [owners] of entries, ascending

/// The newest positions before `end` that every owner holds without a gap.
Range held_by_all(const Sets& cache, int64_t end) {
  int64_t begin = 0;
  for (const auto& entries : cache) {
    int64_t own = end;
    for (auto at = entries.rbegin(); at != entries.rend() && *at == own - 1; ++at) --own;
    begin = std::max(begin, own);
  }
  return {begin, end};
}

/// Numbers of slots -> the entries that lie there.
void name_entries(const Sets& cache, Sets& slots) {
  for (size_t owner = 0; owner < slots.size(); ++owner)
    for (uint32_t& slot : slots[owner]) slot = cache[owner][slot];
}

/// Puts what was kept of earlier chunks before what is kept of the newest.
void put_before(const KeptSets& earlier, KeptSets& newest) {
  const auto join = [](const auto& before, auto& behind) {
    for (size_t o = 0; o < behind.size(); ++o)
      behind[o].insert(behind[o].begin(), before[o].begin(), before[o].end());
  };
  join(earlier.owners, newest.owners);
  join(earlier.guarded, newest.guarded);
  newest.budget += earlier.budget;
  for (size_t o = 0; o < newest.tied.size(); ++o) newest.tied[o] += earlier.tied[o];
  for (size_t o = 0; o < newest.places.size(); ++o) newest.places[o] += earlier.places[o];
}

/// Entries of a chunk's `length` that may stay where a prompt of n is to be compressed so far.
int64_t share_of(const Settings& settings, const Budget& budget, int64_t n, int64_t length) {
  return std::max<int64_t>(1, budget.is_ratio ? budget_entries(settings, budget, length)
                                              : budget.entries(n) * length / n);
}

}  // namespace

Ranking rank(const Table<double>& score, const Table<double>& raw, bool tie_by_raw,
             const std::vector<uint8_t>& candidate) {
  Ranking ranking{.score = &score, .raw = tie_by_raw && !raw.empty() ? &raw : nullptr, .order = {}};
  ranking.order.resize(score.rows());
  std::vector<uint32_t> candidates;  // the more recent first
  for (size_t i = candidate.size(); i-- > 0;)
    if (candidate[i]) candidates.push_back(static_cast<uint32_t>(i));
  if (candidates.empty()) return ranking;
  parallel_for(score.rows(), [&](int64_t owner) {
    const auto s = score.row(owner);
    std::vector<Item> items;
    items.reserve(candidates.size());
    for (const uint32_t i : candidates) items.push_back({~sortable_bits(s[i]), i});
    radix_sort(items);
    if (ranking.raw != nullptr) {
      const auto r = ranking.raw->row(owner);
      for (auto first = items.begin(); first != items.end();) {
        const auto last = std::find_if(first, items.end(),
                                       [&](const Item& item) { return item.key != first->key; });
        std::stable_sort(first, last,
                         [r](const Item& a, const Item& b) { return r[a.entry] > r[b.entry]; });
        first = last;
      }
    }
    auto& order = ranking.order[owner];
    order.reserve(items.size());
    for (const Item& item : items) order.push_back(item.entry);
  });
  return ranking;
}

class PolicyRun::Impl {
 public:
  Impl(std::vector<Record> all, std::vector<Budget> asked, const TraceInfo& trace,
       std::vector<int> run_layers, uint64_t run_seed, const SideFiles& side_files)
      : records(std::move(all)), budgets(std::move(asked)), info(trace),
        layers(std::move(run_layers)), seed(run_seed), files(side_files),
        preparation(info, layers, budgets) {
    for (const Record& record : records) prepared.push_back(preparation.prepare(record));
    for (size_t at = 0; at < records.size(); ++at) {  // companions come after all records
      const auto plain = unconstrained(records[at]);
      if (!plain) continue;
      prepared[at].unconstrained = static_cast<int>(prepared.size());
      prepared.push_back(preparation.prepare(*plain));
    }
  }

  /// Records that are scored in the survey of a layer, or else when it is replayed.
  std::vector<size_t> plans_of(int layer, bool for_survey) const {
    std::vector<size_t> found;
    for (size_t plan = 0; plan < preparation.plans().size(); ++plan) {
      const ScorePlan& p = preparation.plans()[plan];
      if (p.for_survey == for_survey && p.layers.contains(layer)) found.push_back(plan);
    }
    return found;
  }

  ScoredPlans score(LayerWork& work, const std::vector<size_t>& plans) {
    const auto begin = std::chrono::steady_clock::now();
    std::vector<const ScorePlan*> chosen_plans;
    for (const size_t plan : plans) chosen_plans.push_back(&preparation.plans()[plan]);
    const auto results = score_layer(work, files, seed, chosen_plans);
    ScoredPlans scored;
    for (size_t at = 0; at < plans.size(); ++at)
      for (size_t variant = 0; variant < results[at].size(); ++variant)
        scored[{plans[at], variant}] = results[at][variant];
    scoring_seconds +=
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    return scored;
  }

  AllocationRequest allocation(const PreparedRecord& record, size_t b) const {
    return {.settings = &record.settings,
            .files = &files,
            .budget = record.budgets[b].entries,
            .ratio = record.asked[b].amount,
            .budget_is_count = !record.asked[b].is_ratio,
            .entries = info.prompt_len,
            .window = record.budgets[b].window,
            .owners = record.owners,
            .model_layers = info.num_layers,
            .layers = {}};
  }

  /// Scores of records that choose one set for all layers; once, after the survey.
  void unite_layers() {
    std::map<std::pair<size_t, size_t>, std::vector<ScoredLayer*>> layers_of;
    for (const auto& [layer, plans] : surveyed)
      for (const auto& [key, scored] : plans) layers_of[key].push_back(scored.get());
    for (const auto& [key, of_plan] : layers_of) {
      const Settings& settings = preparation.plans()[key.first].settings;
      if (unites_layers(settings)) kvsim::unite_layers(settings, of_plan);
    }
  }

  /// Budgets of kinds that divide a total over layers; once, after the survey.
  void allocate_across() {
    for (PreparedRecord& record : prepared) {
      if (!record.stage<Allocate>().across_layers() || record.layers.empty()) continue;
      for (size_t b = 0; b < budgets.size(); ++b) {
        if (record.budgets[b].keeps_all) continue;
        std::vector<const ScoredPlans*> of_layers;
        for (int layer : record.layers) {
          const auto at = surveyed.find(layer);
          of_layers.push_back(at == surveyed.end() ? nullptr : &at->second);
          if (at != surveyed.end() && record.stage<Allocate>().needs_scores())
            rank_entries(record, b, at->second);
        }
        record.budgets[b].across = allocate(record, b, allocation(record, b), of_layers);
      }
    }
    allocated = true;
  }

  Table<int64_t> allocate(const PreparedRecord& record, size_t b, AllocationRequest request,
                          const std::vector<const ScoredPlans*>& of_layers) const {
    for (size_t l = 0; l < of_layers.size(); ++l)
      request.layers.push_back(allocation_layer(record, b, record.layers[l], of_layers[l]));
    return record.stage<Allocate>().budgets(request);
  }

  AllocationLayer allocation_layer(const PreparedRecord& record, size_t b, int layer,
                                   const ScoredPlans* plans) const {
    AllocationLayer one;
    one.layer = layer;
    if (!plans || !record.stage<Allocate>().needs_scores()) return one;
    const PreparedBudget& at = record.budgets[b];
    const ScoredLayer& scored = *plans->at({at.plan, at.variant});
    const bool by_raw = ties_by_raw(record.settings);
    const Selection selecting(record, at, scored, scored.ranking.at(by_raw), nullptr);
    one.scored = &scored;
    const auto& rankings = allocates_by_unweighted(record.settings) ? scored.ranking_unweighted
                                                                    : scored.ranking;
    one.ranking = &rankings.at(by_raw);
    for (int64_t owner = 0; owner < record.owners; ++owner) {
      Guaranteed sure = selecting.guaranteed(owner);
      one.guaranteed.push_back(std::move(sure.entries));
      one.guarded.push_back(sure.guarded);
    }
    return one;
  }

  /// Makes the rankings that selection reads.
  void rank_entries(const PreparedRecord& record, size_t b, ScoredPlans& plans) const {
    if (record.budgets[b].keeps_all) return;
    kvsim::rank_entries(*plans.at({record.budgets[b].plan, record.budgets[b].variant}),
                        ties_by_raw(record.settings));
  }

  /// Some of the prepared records at all budgets, side by side. `companions`: what those after the
  /// records keep, which some of these look at.
  LayerKept select_all(Range of_prepared, const LayerWork& work, const ScoredPlans& plans,
                       const LayerKept& companions) const {
    const auto all = std::ssize(budgets);
    LayerKept kept(of_prepared.size(), LayerKept::value_type(budgets.size()));
    parallel_for(of_prepared.size() * all, [&](int64_t at) {
      const auto b = static_cast<size_t>(at % all);
      kept[at / all][b] = select(of_prepared.begin + at / all, b, work, plans, companions);
    });
    return kept;
  }

  std::shared_ptr<const KeptSets> select(size_t r, size_t b, const LayerWork& work,
                                         const ScoredPlans& plans,
                                         const LayerKept& companions) const {
    const PreparedRecord& record = prepared[r];
    const PreparedBudget& at = record.budgets[b];
    const int layer = work.layer();
    const auto position = std::ranges::find(record.layers, layer);
    if (at.keeps_all || position == record.layers.end()) {
      auto all = everything(record.owners, info.prompt_len, per_query_head(record.settings));
      all->budget = at.entries;
      // Places stay empty where nothing ever leaves; else entries may have to go while decoding.
      if (position != record.layers.end() && !record.stage<Allocate>().keeps_everything())
        all->places.assign(record.owners, at.places);
      return all;
    }
    const ScoredLayer& scored = *plans.at({at.plan, at.variant});
    const Ranking* ranking = &scored.ranking.at(ties_by_raw(record.settings));
    Ranking nested;
    if (record.settings.flag(keys::nested)) {
      nested = *ranking;
      restrict_to_previous(r, b, nested);
      ranking = &nested;
    }
    const KeptSets* const unconstrained =
        record.unconstrained < 0
            ? nullptr
            : companions[static_cast<size_t>(record.unconstrained) - records.size()][b].get();
    Table<int64_t> own;
    int64_t row = position - record.layers.begin();
    if (!record.stage<Allocate>().across_layers()) {
      AllocationRequest request = allocation(record, b);
      request.layers.push_back(allocation_layer(record, b, layer, &plans));
      own = record.stage<Allocate>().budgets(request);
      row = 0;
    }
    const Table<int64_t>& share = record.stage<Allocate>().across_layers() ? at.across : own;
    auto kept = std::make_shared<KeptSets>();
    kept->per_query_head = per_query_head(record.settings);
    kept->chosen_per_step = record.stage<Schedule>().per_step();
    kept->owners.resize(record.owners);
    kept->guarded.resize(record.owners);
    kept->spread.resize(record.owners);
    kept->tied.resize(record.owners);
    kept->budget = at.entries;
    const int64_t least = std::ranges::count(listed_entries(record.whitelist, info.prompt_len), 1);
    for (int64_t owner = 0; owner < record.owners; ++owner)
      kept->places.push_back(std::clamp(share(row, owner), least, info.prompt_len));
    const Selection selecting(record, at, scored, *ranking, unconstrained);
    if (merges_first(record.settings) || !selects_entries(record.settings)) {
      choose_sets(work, record, scored, *ranking, selecting, *kept);
      return kept;
    }
    parallel_for(record.owners,
                 [&](int64_t owner) { selecting.select(owner, kept->places[owner], *kept); });
    return kept;
  }

  /// Puts what is left after the last chunk in the place of what a prompt that came at once leaves.
  void select_in_chunks(const LayerWork& work, LayerKept& kept) const {
    for (size_t r = 0; r < records.size(); ++r) {
      const PreparedRecord& record = prepared[r];
      if (!record.stage<Schedule>().in_chunks() || record.skips(work.layer())) continue;
      for (size_t b = 0; b < budgets.size(); ++b)
        if (!record.budgets[b].keeps_all)
          kept[r][b] = keep_in_chunks(work, records[r], record.asked[b], seed, files).back().kept;
    }
  }

  /// nested=yes: only entries that the layer before kept are candidates.
  void restrict_to_previous(size_t record, size_t b, Ranking& ranking) const {
    if (previous.empty() || previous[record].empty()) return;
    for (size_t owner = 0; owner < ranking.order.size(); ++owner) {
      std::vector<uint8_t> before(info.prompt_len, 0);
      for (uint32_t i : previous[record][b]->owners[owner]) before[i] = 1;
      std::erase_if(ranking.order[owner], [&](uint32_t i) { return !before[i]; });
    }
  }

  std::vector<Record> records;
  std::vector<Budget> budgets;
  const TraceInfo& info;
  std::vector<int> layers;
  uint64_t seed;
  const SideFiles& files;
  Preparation preparation;
  std::vector<PreparedRecord> prepared;  // records, then their unconstrained companions
  std::map<int, ScoredPlans> surveyed;   // by layer, until it is replayed
  bool allocated = false;
  double scoring_seconds = 0;
  LayerKept previous;  // [prepared][budget] what the layer before kept, as far as records ask
};

PolicyRun::PolicyRun(std::vector<Record> records, std::vector<Budget> budgets,
                     const TraceInfo& info, std::vector<int> layers, uint64_t seed,
                     const SideFiles& files)
    : impl_(std::make_unique<Impl>(std::move(records), std::move(budgets), info, std::move(layers),
                                   seed, files)) {}
PolicyRun::~PolicyRun() = default;

const std::vector<Record>& PolicyRun::records() const { return impl_->records; }
const std::vector<Budget>& PolicyRun::budgets() const { return impl_->budgets; }
bool PolicyRun::needs_survey() const {
  return std::ranges::any_of(impl_->preparation.plans(), [](const ScorePlan& plan) {
    return plan.for_survey && !plan.layers.empty();
  });
}

void PolicyRun::survey(LayerWork& work) {
  impl_->surveyed[work.layer()] = impl_->score(work, impl_->plans_of(work.layer(), true));
}

double PolicyRun::scoring_seconds() const { return impl_->scoring_seconds; }

void PolicyRun::finish_survey() {
  impl_->unite_layers();
  impl_->allocate_across();
}

LayerKept PolicyRun::select(LayerWork& work) {
  Impl& run = *impl_;
  if (!run.allocated) run.allocate_across();
  ScoredPlans plans = run.score(work, run.plans_of(work.layer(), false));
  const auto stored = run.surveyed.find(work.layer());
  if (stored != run.surveyed.end()) {
    for (auto& [key, scored] : stored->second) plans[key] = std::move(scored);
    run.surveyed.erase(stored);
  }
  for (const PreparedRecord& record : run.prepared)
    for (size_t b = 0; b < run.budgets.size() && !record.skips(work.layer()); ++b)
      run.rank_entries(record, b, plans);
  const auto records = std::ssize(run.records);
  const LayerKept companions = run.select_all({records, std::ssize(run.prepared)}, work, plans, {});
  LayerKept kept = run.select_all({0, records}, work, plans, companions);
  run.select_in_chunks(work, kept);
  run.previous = kept;
  run.previous.insert(run.previous.end(), companions.begin(), companions.end());
  for (size_t r = 0; r < run.prepared.size(); ++r)
    if (!run.prepared[r].settings.flag(keys::nested)) run.previous[r].clear();
  return kept;
}

bool compresses_chunks_alone(const Settings& settings) {
  enum class ChunkScope { cache, chunk };
  return settings.word<ChunkScope>(keys::chunk_scope) == ChunkScope::chunk;
}

std::vector<PromptChunk> prompt_chunks(const Settings& settings, const Budget& budget, int64_t n) {
  const bool alone = compresses_chunks_alone(settings);
  const int64_t size = settings.count(keys::chunk), entries = budget_entries(settings, budget, n);
  const int64_t first = !alone && rounds_like_kvpress(settings) ? entries : size;
  std::vector<PromptChunk> chunks;
  for (Range range{0, std::min(first, n)}; range.begin < n;
       range = {range.end, std::min(range.end + size, n)})
    chunks.push_back({range, alone ? share_of(settings, budget, n, range.size()) : entries});
  return chunks;
}

std::vector<KeptAfterChunk> keep_in_chunks(const LayerWork& work, Record record,
                                           const Budget& budget, uint64_t seed,
                                           const SideFiles& files) {
  record.settings.set(Kinds<Schedule>::key(), "prefill");
  record.own_budgets.clear();
  const bool alone = compresses_chunks_alone(record.settings);
  std::vector<KeptAfterChunk> all;
  Sets cache(work.kv_heads());
  for (const PromptChunk& chunk : prompt_chunks(record.settings, budget, work.entries())) {
    for (auto& entries : cache) {
      if (alone) entries.clear();
      for (int64_t i = chunk.range.begin; i < chunk.range.end; ++i)
        entries.push_back(static_cast<uint32_t>(i));
    }
    // As a prompt of what is there, its entries numbered from 0.
    const Range newest = held_by_all(cache, chunk.range.end);
    const TraceInfo info = cache_info(work.info(), std::ssize(cache[0]), newest);
    const LayerTrace layer = cache_layer(work.trace(), info, cache, newest);
    LayerWork own(layer, work.backend(), work.measured_norm());
    const Budget count{std::to_string(chunk.entries), false, Decimal(chunk.entries)};
    PolicyRun run({record}, {count}, info, {work.layer()}, seed, files);
    auto kept = std::make_shared<KeptSets>(*run.select(own)[0][0]);
    name_entries(cache, kept->owners);
    name_entries(cache, kept->guarded);
    if (alone && !all.empty()) put_before(*all.back().kept, *kept);
    cache = kept->owners;
    all.push_back({chunk.range.end, kept});
  }
  return all;
}

}  // namespace kvsim
