#include "sim/policy/policy_run.hpp"
#include "sim/policy/prepared_record.hpp"

namespace kvsim {
namespace {

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

ChunkedPrefill::ChunkedPrefill(const Record& record, uint64_t seed, const SideFiles& files)
    : record_(record), seed_(seed), files_(files) {
  record_.settings.set(Kinds<Schedule>::key(), "prefill");
  record_.own_budgets.clear();
}

std::vector<ChunkedPrefill::Compressed> ChunkedPrefill::run(const LayerWork& work,
                                                            const Budget& budget) const {
  const bool alone = compresses_chunks_alone(record_.settings);
  std::vector<Compressed> all;
  Sets cache(work.kv_heads());
  for (const PromptChunk& chunk : prompt_chunks(record_.settings, budget, work.entries())) {
    for (auto& entries : cache) {
      if (alone) entries.clear();
      for (int64_t i = chunk.range.begin; i < chunk.range.end; ++i)
        entries.push_back(static_cast<uint32_t>(i));
    }
    const auto kept = compress(work, chunk, cache);
    if (alone && !all.empty()) put_before(*all.back().kept, *kept);
    cache = kept->owners;
    all.push_back({chunk.range.end, kept});
  }
  return all;
}

/// As a prompt of what is there, its entries numbered from 0.
std::shared_ptr<KeptSets> ChunkedPrefill::compress(const LayerWork& work, const PromptChunk& chunk,
                                                   const Sets& cache) const {
  const Range newest = held_by_all(cache, chunk.range.end);
  const TraceInfo info = cache_info(work.info(), std::ssize(cache[0]), newest);
  const LayerTrace layer = cache_layer(work.trace(), info, cache, newest);
  LayerWork own(layer, work.backend(), work.measured_norm());
  const Budget count{std::to_string(chunk.entries), false, Decimal(chunk.entries)};
  PolicyRun run({record_}, {count}, info, {work.layer()}, seed_, files_);
  auto kept = std::make_shared<KeptSets>(*run.select(own)[0][0]);
  name_entries(cache, kept->owners);
  name_entries(cache, kept->guarded);
  return kept;
}

}  // namespace kvsim
