#include "sim/replay/compression.hpp"

namespace kvsim {

Segment decode_segment(const Settings& settings, int64_t budget, const TraceInfo& info) {
  const auto& queries = chosen<Queries>(settings);
  Segment segment;
  segment.range = {0, info.prompt_len};
  queries.observe(settings, queries.window(settings, budget, info.prompt_len), info, segment);
  segment.candidates = segment.range;  // a window's entries are candidates once it has moved on
  return segment;
}

Table<float> norms_of_all(LayerWork& work, Norm norm) {
  const int64_t n = work.entries(), all = work.info().total_len;
  const Table<float>& prompt = work.projected_norms(norm);
  Table<float> later(work.query_heads(), all - n), whole(work.query_heads(), all);
  if (n < all) work.backend().projected_norms(work.trace(), norm, {n, all}, later.data());
  for (int64_t h = 0; h < whole.rows(); ++h) {
    std::ranges::copy(prompt.row(h), whole.row(h).begin());
    std::ranges::copy(later.row(h), whole.row(h).begin() + n);
  }
  return whole;
}

namespace {

/// Estimates from the last prompt queries. Logits are linear in the key here (no softcap).
std::unique_ptr<Estimates> first_estimates(const LayerWork& work, const SlotCache& cache,
                                           const Settings& settings, int64_t budget) {
  const int64_t n = cache.size();
  const EstimateLines lines = chosen<Merge>(settings).estimates();
  const bool per_head = lines == EstimateLines::every_head;
  const int count = per_head ? cache.heads() : 1;
  const auto& kind = chosen<ScoreEstimate>(settings);
  const int64_t rows = std::min(kind.rows(settings, budget), n);
  auto estimates = kind.start(settings, budget, count, n);
  const int64_t end =
      work.info().first_step();  // stored queries n-rows..n-1 are the last before it
  Table<float> queries(count * rows, cache.key_dim()), logits(count * rows, n);
  const auto seen = ascending(rows, n - rows + 1);
  for (int line = 0; line < count; ++line)
    std::ranges::copy(
        per_head
            ? mean_queries(work.trace(), cache.first_head() + line, 1, end - rows, end).values()
            : mean_queries(work.trace(), cache.first_head(), cache.heads(), end - rows, end)
                  .values(),
        queries.row(line * rows).data());
  SlotRows all;
  all.heads = count;
  all.rows = rows;
  all.queries = queries.data();
  all.segments = {{cache.keys(), cache.values(), n, nullptr}};
  all.seen = seen.data();
  all.logits = logits.data();
  work.backend().attend(work.trace(), {&all, 1});
  for (int line = 0; line < count; ++line)
    for (int64_t r = 0; r < rows; ++r) {
      const auto row = logits.row(line * rows + r);
      estimates->see(line, std::vector<double>(row.begin(), row.end()));
    }
  return estimates;
}

/// An owner without slots.
SlotCache empty_cache(const LayerWork& work, const KeptSets& kept, int owner) {
  const int heads = kept.per_query_head ? 1 : work.group_size();
  return {owner, owner * heads, heads, work.trace().k.dim(2), work.value_dim()};
}

/// Prompt entries as slots of their own.
void append_entries(const LayerWork& work, std::span<const uint32_t> entries, SlotCache& cache) {
  const int kv = cache.first_head() / work.group_size();
  cache.reserve(std::ssize(entries) + 1);  // and the newest, while decoding
  for (const int64_t i : entries) append_entry(work.trace(), kv, i, cache);
}

/// Attention of query n-1 on every entry, mean over each owner's heads.
void read_newest_attention(LayerWork& work, std::vector<MergeOwner>& owners) {
  const std::vector<int64_t> newest = {work.entries() - 1};
  AttentionPass pass;
  pass.positions = newest;
  for_each_attention_block(work, pass, [&](const AttentionBlock& block, int64_t) {
    for (MergeOwner& owner : owners) {
      const int first = owner.cache->first_head() - block.kv_head * block.heads;
      if (first < 0 || first >= block.heads) continue;
      owner.attention.assign(block.columns, 0.0);
      for (int x = 0; x < owner.cache->heads(); ++x) {
        const float* row = block.attention_row(first + x, 0);
        for (size_t i = 0; i < owner.attention.size(); ++i)
          owner.attention[i] += static_cast<double>(row[i]) / owner.cache->heads();
      }
    }
  });
}

/// The observing queries of an owner's heads, of the prompt and of a probe.
std::unique_ptr<ReferenceQueries> reference_queries(const LayerWork& work, const SlotCache& cache,
                                                    const Segment& segment) {
  const LayerTrace& layer = work.trace();
  auto reference = std::make_unique<ReferenceQueries>();
  reference->scale = layer.scale;
  const std::vector<int64_t> stored = stored_queries(work, segment.positions, false);
  const int64_t rows = std::ssize(stored) + std::ssize(segment.probe_tokens);
  reference->queries = Table<float>(rows * cache.heads(), cache.key_dim());
  int64_t next = 0;
  for (int x = 0; x < cache.heads(); ++x) {
    const int head = cache.first_head() + x;
    const auto read = [&](const Tensor& q, const std::vector<int64_t>& which) {
      for (const int64_t row : which) {
        q.read(head, row, row + 1, reference->queries.row(next++).data());
        reference->head.push_back(x);
      }
    };
    read(layer.q, stored);
    if (segment.probe >= 0) read(layer.probes[segment.probe].q, segment.probe_tokens);
    if (!layer.attention_sink.empty()) reference->sinks.push_back(layer.attention_sink[head]);
  }
  return reference;
}

}  // namespace

void FirstEstimates::prepare(const KeptSets& kept, const Settings& settings) {
  const int64_t rows = chosen<ScoreEstimate>(settings).rows(settings, kept.budget);
  if (settings_ == &settings && rows_ == rows && owners_.size() == kept.owners.size()) return;
  settings_ = &settings;
  rows_ = rows;
  budget_ = kept.budget;
  owners_.clear();
  owners_.resize(kept.owners.size());
}

std::unique_ptr<Estimates> FirstEstimates::of(const LayerWork& work, const SlotCache& cache) {
  std::unique_ptr<Estimates>& made = owners_[cache.owner()];
  if (made == nullptr) made = first_estimates(work, cache, *settings_, budget_);
  return made->copy();
}

void append_entry(const LayerTrace& layer, int kv_head, int64_t entry, SlotCache& cache) {
  cache.append(entry);
  const int64_t slot = cache.size() - 1;
  layer.k.read(kv_head, entry, entry + 1, cache.key(slot).data());
  layer.v.read(kv_head, entry, entry + 1, cache.value(slot).data());
}

std::vector<PairMerge> pairs_made(const MergeOwner& owner, const Settings& settings,
                                  int64_t merged_at) {
  std::vector<PairMerge> pairs;
  const SlotCache& cache = *owner.cache;
  for (const MergeOwner::Step& step : owner.steps) {
    if (std::isnan(step.log_score_from) || cache.members(step.into).size() != 2) continue;
    PairMerge& pair = pairs.emplace_back();
    pair.first_head = cache.first_head();
    pair.heads = cache.heads();
    pair.from = static_cast<uint32_t>(cache.position(step.from));
    pair.into = static_cast<uint32_t>(cache.position(step.into));
    pair.merged_at = merged_at;
    pair.log_score_from = step.log_score_from;
    pair.log_score_into = step.log_score_into;
    pair.scale = step.scale;
    pair.log_weight = votes_of(settings).log_weight(cache, step.into, 0);
    pair.key.assign(cache.key(step.into).begin(), cache.key(step.into).end());
    pair.value.assign(cache.value(step.into).begin(), cache.value(step.into).end());
  }
  return pairs;
}

Compressed compress(LayerWork& work, const KeptSets& kept, const Settings& settings, uint64_t seed,
                    MergeMemory& memory, FirstEstimates& estimates, bool note_pairs) {
  const Merge& merge = chosen<Merge>(settings);
  if (merge.estimates() != EstimateLines::none) estimates.prepare(kept, settings);
  const auto all = ascending<uint32_t>(merge.merges() ? work.entries() : 0);
  Compressed result;
  result.per_query_head = kept.per_query_head;
  MergeRequest request{&settings, seed, work.layer(), {}, &memory};
  request.owners.resize(kept.owners.size());
  for (size_t o = 0; o < kept.owners.size(); ++o)
    result.owners.push_back(empty_cache(work, kept, static_cast<int>(o)));
  parallel_for(std::ssize(kept.owners), [&](int64_t at) {
    SlotCache& cache = result.owners[at];
    MergeOwner& owner = request.owners[at];
    owner.cache = &cache;
    std::ranges::set_difference(ascending<int64_t>(work.entries()), kept.owners[at],
                                std::back_inserter(owner.evicted));
    append_entries(work, merge.merges() ? all : kept.owners[at], cache);
    if (merge.estimates() != EstimateLines::none) cache.estimate_with(estimates.of(work, cache));
    for (size_t s = 0; !kept.sets.empty() && s < kept.sets[at].size(); ++s)
      owner.sets.push_back(
          {kept.owners[at][s], {kept.sets[at][s].begin(), kept.sets[at][s].end()}});
  });
  if (merge.uses_attention()) read_newest_attention(work, request.owners);
  if (merge.fits_queries()) {
    const Segment segment = decode_segment(settings, kept.budget, work.info());
    for (MergeOwner& owner : request.owners)
      owner.reference = reference_queries(work, *owner.cache, segment);
  }
  merge.apply(request);
  for (MergeOwner& owner : request.owners) {
    if (note_pairs) {
      const auto made = pairs_made(owner, settings, work.entries() - 1);
      result.pairs.insert(result.pairs.end(), made.begin(), made.end());
    }
    if (merge.merges()) owner.cache->erase(owner.evicted);  // else they never joined
    result.undefined_scales += owner.undefined_scales;
    result.scales.insert(result.scales.end(), owner.scales.begin(), owner.scales.end());
    result.evicted.push_back(std::move(owner.evicted));
    result.steps.push_back(std::move(owner.steps));
  }
  return result;
}

std::shared_ptr<KeptSets> kept_after(const std::vector<SlotCache>& owners, const KeptSets& kept,
                                     int64_t entries) {
  auto after = std::make_shared<KeptSets>(kept);
  after->merged.assign(owners.size(), {});
  after->own.assign(owners.size(), {});
  for (size_t o = 0; o < owners.size(); ++o) {
    after->owners[o].clear();
    for (int64_t s = 0; s < owners[o].size(); ++s) {
      const int64_t own = owners[o].position(s);
      if (own < entries) {
        after->owners[o].push_back(static_cast<uint32_t>(own));
        if (!owners[o].members(s).empty()) after->own[o].push_back(static_cast<uint32_t>(own));
      }
      for (const uint32_t entry : owners[o].members(s))
        if (entry != own && entry < entries) after->merged[o].push_back(entry);
    }
    std::ranges::sort(after->merged[o]);
  }
  return after;
}

int64_t merged_slots(const std::vector<SlotCache>& owners) {
  int64_t count = 0;
  for (const SlotCache& cache : owners)
    for (int64_t s = 0; s < cache.size(); ++s) count += !cache.members(s).empty();
  return count;
}

}  // namespace kvsim
