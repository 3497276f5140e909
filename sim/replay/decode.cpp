#include <Eigen/Core>

#include "sim/core/numbers.hpp"
#include "sim/replay/decode_scores.hpp"
#include "sim/replay/layer_replay.hpp"
#include "sim/stages/merge/merge.hpp"

namespace kvsim {
namespace {

constexpr int64_t kBlockValues = int64_t{1} << 24;  // attention of all heads: 64 MB at a time
constexpr int64_t kMostSteps = 64;

using Floats = Eigen::Map<const Eigen::ArrayXf>;

/// Entries of the full cache, ascending, and where some parts of the prompt lie among them.
class Entries {
 public:
  Entries(std::span<const int64_t> entries, const PromptParts& parts) : entries_(entries) {
    for (const std::vector<Range>& ranges : parts) {
      std::vector<Range>& inside = parts_.emplace_back();
      for (const Range range : ranges) {
        const auto first = std::ranges::lower_bound(entries, range.begin);
        const auto last = std::ranges::lower_bound(entries, range.end);
        inside.push_back({first - entries.begin(), last - entries.begin()});
      }
    }
  }

  /// Sums of one head at one step.
  void add_up(const float* full, const float* weight, std::vector<double>& gains) {
    gains.resize(entries_.size());
    attention = importance = squares = 0;
    for (size_t x = 0; x < entries_.size(); ++x) {
      const auto a = static_cast<double>(full[entries_[x]]);
      const double gain = gains[x] = a * static_cast<double>(weight[entries_[x]]);
      attention += a;
      importance += gain;
      squares += gain * gain;
    }
    of_parts.assign(parts_.size(), 0.0);
    for (size_t part = 0; part < parts_.size(); ++part)
      for (const Range inside : parts_[part])
        for (int64_t x = inside.begin; x < inside.end; ++x) of_parts[part] += gains[x];
  }

  double attention = 0, importance = 0, squares = 0;
  std::vector<double> of_parts;  ///< importance of each part

 private:
  std::span<const int64_t> entries_;
  std::vector<std::vector<Range>> parts_;  ///< numbers of entries
};

/// Some later steps of the full cache, all heads, as decoding compares with them.
struct DecodeBlock {
  int64_t first_step = 0;
  int64_t steps = 0;
  std::vector<AttentionBlock> heads;         ///< [Hkv]; columns 0..last position, outputs, logits
  ShareSums total;                           ///< on entries before the query
  const Table<float>* importance = nullptr;  ///< [Hq][N] weight of each entry
  bool count_query = false;                  ///< the query's own entry belongs to the scope
  bool leave_out_guarded = false;            ///< guarded entries do not
  const PromptParts* parts = nullptr;        ///< of the prompt, summed apart
  std::vector<Table<double>> part_total;     ///< [parts][Hq][steps]

  const AttentionBlock& of(int head) const { return heads[head / heads.front().heads]; }
  /// Number of a query head's row in its block.
  int64_t row(int head, int64_t step) const { return head % heads.front().heads * steps + step; }
  const float* attention(int head, int64_t step) const {
    return of(head).attention_row(0, row(head, step));
  }
  /// Only where asked for.
  const float* logits(int head, int64_t step) const {
    return of(head).logit_row(0, row(head, step));
  }
  double log_sum_exp(int head, int64_t step) const { return of(head).log_sum_exp[row(head, step)]; }
  const float* z(int head, int64_t step, int64_t width) const {
    return of(head).outputs.data() + row(head, step) * width;
  }
};

/// Numbers of one record at one budget over a block of steps.
struct DecodeSeries {
  DecodeSeries(int64_t heads, int64_t steps, int64_t width, size_t parts)
      : kept(ShareSums::of(heads, steps)), guarded(kept), guarded_entries(heads, steps),
        part_kept(parts, Table<double>(heads, steps)),
        part_guarded(parts, Table<double>(heads, steps)), delta(heads * steps * width),
        merges(heads, steps) {}
  ShareSums kept;
  ShareSums guarded;                     ///< on entries that were protected (--scope evictable)
  Table<double> guarded_entries;         ///< [Hq][steps] how many
  std::vector<Table<double>> part_kept;  ///< [parts][Hq][steps] importance
  std::vector<Table<double>> part_guarded;
  std::vector<float> delta;  ///< [Hq][steps][dv]
  MergeTally merges;
};

/// One record at one budget on one layer while it decodes: slots, their statistics, and the step of
/// policies.md 12. Time per step is linear in the slots present.
class DecodeRun {
 public:
  DecodeRun(LayerWork& work, const KeptSets& kept, const Settings& settings, uint64_t seed,
            bool note_pairs)
      : work_(work), kept_(kept), settings_(settings), seed_(seed), note_pairs_(note_pairs),
        queries_(kept.owners.size()), gains_(kept.owners.size()), protection_(work, kept, settings),
        scores_(work, owners_, kept, settings, seed, protection_) {
    for (size_t o = 0; o < kept.owners.size(); ++o) attention_.emplace_back(work, settings);
    if (!scores_rows(settings)) return;
    prompt_ = std::make_unique<PromptStatistics>(
        work, settings, decode_segment(settings, kept.budget, work.info()));
  }

  /// Statistic that has to see the prompt's rows before start(); null when none is kept.
  PromptStatistics* prompt() const { return prompt_.get(); }
  void start() {
    FirstEstimates estimates;
    Compressed compressed = compress(work_, kept_, settings_, seed_, memory_, estimates,
                                     note_pairs_);
    owners_ = std::move(compressed.owners);
    for (const SlotCache& cache : owners_) most_slots_.push_back(cache.size());
    undefined_scales_ = compressed.undefined_scales;
    scales_ = std::move(compressed.scales);
    for (PairMerge& pair : compressed.pairs) open_pair(std::move(pair));
    scores_.start(prompt_.get(), compressed);
    prompt_.reset();
  }
  /// Steps 1 to 4 for all stored queries of the block.
  void run(const DecodeBlock& block, DecodeSeries& series) {
    if (!owners_are_apart()) {
      for (int64_t s = 0; s < block.steps; ++s) step(block, s, series);
      return;
    }
    for_owners(owners_, block.steps, [&](size_t owner) {
      for (int64_t s = 0; s < block.steps; ++s) {
        append(owner, block.heads.front().positions[s]);
        attend(owner, block, s, series);
        scores_.see(owner, attention_[owner]);
        drop(owner, scores_.leaving(owner));
      }
    });
  }

  const std::vector<SlotCache>& owners() const { return owners_; }
  /// What became of the slots so far.
  void report(ReplayOutcome& outcome, int64_t entries) const {
    outcome.kept = kept_after(owners_, *outcome.first_kept, entries);
    outcome.merge_count = merged_slots(owners_);
    outcome.undefined_scales = undefined_scales_;
    outcome.most_slots = most_slots_;
    outcome.scales = scales_;
    outcome.pairs = pairs_;
  }

 private:
  /// Each owner that is apart goes through all steps of a block at once, while its keys and values
  /// are near.
  bool owners_are_apart() const {
    const Merge& merge = chosen<Merge>(settings_);
    return !merge.merges() && !merge.uses_attention() && scores_.owners_are_apart();
  }
  void step(const DecodeBlock& block, int64_t step, DecodeSeries& series) {
    const int64_t position = block.heads.front().positions[step];
    if (scores_.weights().of_all_heads()) scores_.weights().sum_over_heads(position);
    for_owners(owners_, 1, [&](size_t owner) {
      append(owner, position);
      attend(owner, block, step, series);
      if (Estimates* const estimates = owners_[owner].estimates())
        attention_[owner].show(owners_[owner], *estimates);
    });
    scores_.see(attention_);
    evict();
  }
  void append(size_t owner, int64_t position) {
    SlotCache& cache = owners_[owner];
    append_entry(work_.trace(), cache.first_head() / work_.group_size(), position, cache);
    most_slots_[owner] = std::max(most_slots_[owner], cache.size());
    scores_.append(owner);
  }
  /// z^ - z of the owner's queries, and what the slots present hold of the full cache.
  void attend(size_t owner, const DecodeBlock& block, int64_t step, DecodeSeries& series) {
    const SlotCache& cache = owners_[owner];
    const int64_t d = cache.key_dim(), width = cache.value_dim();
    const int64_t at = work_.info().first_step() + block.first_step + step;
    float* const queries = queries_[owner].reserve(cache.heads() * d);
    for (int x = 0; x < cache.heads(); ++x) {
      work_.trace().q.read(cache.first_head() + x, at, at + 1, queries + x * d);
      scores_.see_query(owner, x, {queries + x * d, static_cast<size_t>(d)});
    }
    const float* const outputs = attention_[owner].attend(cache, queries);
    for (int x = 0; x < cache.heads(); ++x) {
      const int head = cache.first_head() + x;
      const float* const z = block.z(head, step, width);
      const float* const z_hat = outputs + x * width;
      float* const delta = series.delta.data() + (head * block.steps + step) * width;
      for (int64_t c = 0; c < width; ++c) delta[c] = z_hat[c] - z[c];
    }
    compare(owner, block, step, series);
  }
  void evict() {
    const auto& merge = chosen<Merge>(settings_);
    MergeRequest request{&settings_, seed_, work_.layer(), {}, &memory_};
    request.owners.resize(owners_.size());
    scores_.unite();
    for_owners(owners_, 1, [&](size_t o) {
      MergeOwner& owner = request.owners[o];
      owner.cache = &owners_[o];
      owner.evicted = scores_.leaving(o);
      if (!merge.uses_attention()) return;
      const Table<double>& attention = attention_[o].attention();
      owner.attention.assign(attention.columns(), 0.0);
      for (int64_t x = 0; x < attention.rows(); ++x)
        for (int64_t s = 0; s < std::ssize(owner.attention); ++s)
          owner.attention[s] += attention(x, s) / static_cast<double>(attention.rows());
    });
    const bool nobody = std::ranges::all_of(
        request.owners, [](const MergeOwner& owner) { return owner.evicted.empty(); });
    if (nobody) return;
    merge.apply(request);
    for (size_t o = 0; o < owners_.size(); ++o) {
      MergeOwner& owner = request.owners[o];
      undefined_scales_ += owner.undefined_scales;
      scales_.insert(scales_.end(), owner.scales.begin(), owner.scales.end());
      scores_.merge(o, owner.steps);
      if (note_pairs_) follow_pairs(owner);
      drop(o, owner.evicted);
      if (merges(settings_)) scores_.weights().weigh_all(o);
    }
  }
  void open_pair(PairMerge pair) {
    open_pairs_[{pair.first_head, pair.into}] = pairs_.size();
    pairs_.push_back(std::move(pair));
  }
  /// Pairs end when their slot leaves or takes in a third entry; new ones begin. The newest slot is
  /// that of the query after which this happens.
  void follow_pairs(const MergeOwner& owner) {
    const SlotCache& cache = *owner.cache;
    const int64_t now = cache.position(cache.size() - 1);
    const auto end = [&](int64_t slot) {
      const auto found = open_pairs_.find(
          {cache.first_head(), static_cast<uint32_t>(cache.position(slot))});
      if (found == open_pairs_.end()) return;
      pairs_[found->second].last = now;
      open_pairs_.erase(found);
    };
    for (const MergeOwner::Step& step : owner.steps) end(step.into);
    for (const int64_t slot : owner.evicted) end(slot);
    for (PairMerge& pair : pairs_made(owner, settings_, now)) open_pair(std::move(pair));
  }
  void drop(size_t owner, std::span<const int64_t> slots) {
    scores_.erase(owner, slots);
    owners_[owner].erase(slots);
  }
  /// Attention and importance of the full cache on the slots present that are before the query.
  void compare(size_t owner, const DecodeBlock& block, int64_t step, DecodeSeries& series) {
    const SlotCache& cache = owners_[owner];
    const std::span<const int64_t> present(cache.positions().data(),
                                           cache.size() - (block.count_query ? 0 : 1));
    std::vector<int64_t> guarded;
    for (size_t s = 0; block.leave_out_guarded && s < present.size(); ++s)
      if (protection_.holds(owner, cache, static_cast<int64_t>(s))) guarded.push_back(present[s]);
    Entries kept(present, *block.parts), safe(guarded, *block.parts);
    for (int head = cache.first_head(); head < cache.first_head() + cache.heads(); ++head) {
      for (Entries* const entries : {&kept, &safe})
        entries->add_up(block.attention(head, step), block.importance->row(head).data(),
                        gains_[owner]);
      for (const auto& [to, from] : {std::pair(&series.kept, &kept), {&series.guarded, &safe}}) {
        to->attention(head, step) = from->attention;
        to->importance(head, step) = from->importance;
        to->squares(head, step) = from->squares;
      }
      series.guarded_entries(head, step) = static_cast<double>(guarded.size());
      for (size_t part = 0; part < block.parts->size(); ++part) {
        series.part_kept[part](head, step) = kept.of_parts[part];
        series.part_guarded[part](head, step) = safe.of_parts[part];
      }
    }
    if (!merges(settings_)) return;
    for (int x = 0; x < cache.heads(); ++x) compare_merged(owner, x, block, step, series.merges);
  }
  void compare_merged(size_t owner, int x, const DecodeBlock& block, int64_t step,
                      MergeTally& tally) const {
    const SlotCache& cache = owners_[owner];
    const Votes& votes = votes_of(settings_);
    const int head = cache.first_head() + x;
    const FullRow full{block.attention(head, step), block.logits(head, step),
                       block.log_sum_exp(head, step)};
    std::vector<float> value(cache.value_dim());
    const auto value_of = [&](uint32_t entry) {
      work_.trace().v.read(cache.first_head() / work_.group_size(), entry, entry + 1, value.data());
      return std::span<const float>(value);
    };
    MergeTally::Row sums = tally.row_of(head);
    for (int64_t s = 0; s < cache.size(); ++s) {
      if (cache.members(s).empty()) continue;
      const SlotMembers all = sum_members(cache.members(s),
                                          static_cast<uint32_t>(cache.position(s)), full,
                                          block.importance->row(head));
      sums.add_members(all.merged_attention, all.merged_importance);
      const double logit = attention_[owner].logits()(x, s) + votes.log_weight(cache, s, x);
      sums.add_slot(all.attention, attention_[owner].attention()(x, s), logit - all.log_mass);
      if (tally.wants_changes())
        sums.add_change(
            change_by_slot(work_, head, work_.info().first_step() + block.first_step + step, full,
                           cache.members(s), all.attention, all.log_mass, logit - all.log_mass,
                           cache.value(s), block.z(head, step, cache.value_dim()), value_of));
    }
    tally.add(head, step, sums);
  }

  LayerWork& work_;
  const KeptSets& kept_;
  const Settings& settings_;
  uint64_t seed_;
  bool note_pairs_;
  std::unique_ptr<PromptStatistics> prompt_;
  std::vector<SlotCache> owners_;
  std::vector<OwnerAttention> attention_;
  std::vector<Buffer<float>> queries_;      ///< per owner [heads][d] of the step at work
  std::vector<std::vector<double>> gains_;  ///< per owner, importance of the entries present
  SlotProtection protection_;
  SlotScores scores_;
  MergeMemory memory_;
  int64_t undefined_scales_ = 0;
  std::vector<int64_t> most_slots_;
  std::vector<double> scales_;
  std::vector<PairMerge> pairs_;  ///< slots of exactly two entries over time
  std::map<std::pair<int, uint32_t>, size_t> open_pairs_;  ///< by first head and entry c
};

ShareSums difference(ShareSums all, const ShareSums& less) {
  for (const auto part : {&ShareSums::attention, &ShareSums::importance, &ShareSums::squares})
    for (size_t x = 0; x < (all.*part).values().size(); ++x)
      (all.*part).values()[x] -= (less.*part).values()[x];
  return all;
}

/// [parts][steps] from [parts][Hq][steps], with or without what is guarded of it.
Table<double> over_heads(const std::vector<Table<double>>& parts,
                         const std::vector<Table<double>>& guarded, bool leave_out) {
  if (parts.empty()) return {};
  Table<double> sums(std::ssize(parts), parts[0].columns());
  for (int64_t part = 0; part < std::ssize(parts); ++part)
    for (int64_t h = 0; h < parts[part].rows(); ++h)
      for (int64_t s = 0; s < sums.columns(); ++s)
        sums(part, s) += parts[part](h, s) - (leave_out ? guarded[part](h, s) : 0.0);
  return sums;
}

/// Prompt statistics of all runs share passes over the attention, then every run compresses.
std::vector<std::unique_ptr<DecodeRun>> start_runs(LayerWork& work,
                                                   const std::vector<ReplayOutcome>& outcomes,
                                                   const PrefillOptions& options) {
  std::vector<std::unique_ptr<DecodeRun>> runs;
  std::vector<RowConsumer*> consumers;
  for (const ReplayOutcome& outcome : outcomes) {
    runs.push_back(std::make_unique<DecodeRun>(work, *outcome.first_kept, *outcome.settings,
                                               options.seed, options.pairs));
    if (runs.back()->prompt() != nullptr) consumers.push_back(runs.back()->prompt());
  }
  run_consumers(work, consumers);
  for (const auto& run : runs) run->start();
  return runs;
}

/// The full cache at some steps, for comparison only: policies see nothing of it.
void read_block(LayerWork& work, const PrefillOptions& options, bool logits, int64_t first,
                int64_t steps, const Table<float>& importance, DecodeBlock& block) {
  const TraceInfo& info = work.info();
  block.first_step = first;
  block.steps = steps;
  block.importance = &importance;
  block.count_query = options.scope == Scope::all;
  block.leave_out_guarded = options.scope == Scope::evictable;
  block.total = ShareSums::of(work.query_heads(), steps);
  block.parts = &options.parts;
  block.part_total.assign(options.parts.size(), block.total.importance);
  AttentionRequest request;
  for (int64_t s = 0; s < steps; ++s) request.rows.push_back(info.first_step() + first + s);
  request.columns = info.query_position[request.rows.back()] + 1;
  request.outputs = true;
  request.logits = logits;
  block.heads.resize(work.kv_heads());
  for (int kv = 0; kv < work.kv_heads(); ++kv) {
    request.kv_head = kv;
    work.backend().attention(work.trace(), request, block.heads[kv]);
  }
  parallel_for(work.query_heads(), [&](int64_t h) {
    const auto head = static_cast<int>(h);
    for (int64_t s = 0; s < steps; ++s) {
      const float* row = block.attention(head, s);
      const int64_t before = block.heads.front().positions[s] + (block.count_query ? 1 : 0);
      const auto a = Floats(row, before).cast<double>();
      const Eigen::ArrayXd gain = a * Floats(importance.row(head).data(), before).cast<double>();
      block.total.attention(h, s) = a.sum();
      block.total.importance(h, s) = gain.sum();
      block.total.squares(h, s) = gain.square().sum();
      for (size_t part = 0; part < block.part_total.size(); ++part)
        for (const Range range : options.parts[part])
          for (int64_t i = range.begin; i < range.end; ++i)
            block.part_total[part](h, s) += static_cast<double>(row[i]) *
                                            static_cast<double>(importance(h, i));
    }
  });
}

RetainedSums sums_of(const LayerWork& work, const DecodeBlock& full, const DecodeSeries& series) {
  const bool leave_out = full.leave_out_guarded;
  const auto scoped = [&](const ShareSums& all) {
    return leave_out ? difference(all, series.guarded) : all;
  };
  RetainedSums sums;
  sums.kept = scoped(series.kept);
  sums.total = scoped(full.total);
  sums.part_kept = over_heads(series.part_kept, series.part_guarded, leave_out);
  sums.part_total = over_heads(full.part_total, series.part_guarded, leave_out);
  for (int64_t s = 0; s < full.steps; ++s) {
    const int64_t before = full.heads.front().positions[s] + (full.count_query ? 1 : 0);
    sums.entries.push_back(static_cast<double>(before * work.query_heads()));
    for (int64_t h = 0; leave_out && h < work.query_heads(); ++h)
      sums.entries.back() -= series.guarded_entries(h, s);
  }
  return sums;
}

}  // namespace

DecodeReplay::DecodeReplay(LayerWork& work, const LayerKept& kept,
                           const std::vector<Record>& records, const PrefillOptions& options)
    : work_(work), options_(options), outcomes_(outcome_of_each(kept, records)) {
  for (ReplayOutcome& outcome : outcomes_) outcome.changed = true;
}

void DecodeReplay::run(const std::function<void(const StepBlock&)>& sink) {
  if (outcomes_.empty()) return;
  const TraceInfo& info = work_.info();
  const int64_t heads = work_.query_heads();
  Table<float> made_here;
  if (options_.importance == nullptr) made_here = norms_of_all(work_, options_.norm);
  const Table<float>& importance = options_.importance ? *options_.importance : made_here;
  const std::vector<std::unique_ptr<DecodeRun>> runs = start_runs(work_, outcomes_, options_);
  for (size_t r = 0; r < runs.size(); ++r) {  // what the prompt's compression left
    std::shared_ptr<const KeptSets>& first = outcomes_[r].first_kept;
    if (outcomes_[r].merging) first = kept_after(runs[r]->owners(), *first, work_.entries());
  }
  const int64_t most = std::clamp<int64_t>(kBlockValues / (heads * info.total_len), 1, kMostSteps);
  const bool logits = std::ranges::any_of(outcomes_, &ReplayOutcome::merging);
  DecodeBlock full;  // its memory serves every block
  for (int64_t first = 0; first < info.steps(); first += most) {
    const int64_t steps = std::min(most, info.steps() - first);
    read_block(work_, options_, logits, first, steps, importance, full);
    std::vector<DecodeSeries> series(
        runs.size(), DecodeSeries(heads, steps, work_.value_dim(), options_.parts.size()));
    for (DecodeSeries& one : series) one.merges = MergeTally(heads, steps, options_.slot_changes);
    const auto advance = [&](size_t r) { runs[r]->run(full, series[r]); };
    // Threads share runs if there are enough of them, else the heads of each.
    if (static_cast<int>(runs.size()) >= threads())
      parallel_for(std::ssize(runs), [&](int64_t r) { advance(r); });
    else
      for (size_t r = 0; r < runs.size(); ++r) advance(r);
    std::vector<RetainedSums> sums(runs.size());
    StepBlock block{full.first_step, full.steps, nullptr, {}};
    for (size_t r = 0; r < runs.size(); ++r) {
      OutcomeBlock& view = block.outcomes.emplace_back();
      view.outcome = static_cast<int>(r);
      view.delta = series[r].delta.data();
      if (outcomes_[r].merging) view.merges = &series[r].merges;
      if (!outcomes_[r].shares_defined) continue;
      sums[r] = sums_of(work_, full, series[r]);
      view.sums = &sums[r];
    }
    sink(block);
  }
  for (size_t r = 0; r < runs.size(); ++r) runs[r]->report(outcomes_[r], work_.entries());
}

}  // namespace kvsim
