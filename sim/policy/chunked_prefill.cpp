#include "sim/policy/policy_run.hpp"

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

}  // namespace

std::vector<int64_t> chunk_ends(const Settings& settings, int64_t entries) {
  std::vector<int64_t> ends;
  for (int64_t end = settings.count(keys::chunk); end < entries; end += settings.count(keys::chunk))
    ends.push_back(end);
  ends.push_back(entries);
  return ends;
}

ChunkedPrefill::ChunkedPrefill(const Record& record, uint64_t seed, const SideFiles& files)
    : record_(record), seed_(seed), files_(files) {
  record_.settings.set(Kinds<Schedule>::key(), "prefill");
  record_.own_budgets.clear();
}

std::vector<ChunkedPrefill::Compressed> ChunkedPrefill::run(const LayerWork& work,
                                                            int64_t budget) const {
  std::vector<Compressed> all;
  Sets cache(static_cast<size_t>(work.kv_heads()));
  for (const int64_t end : chunk_ends(record_.settings, work.entries())) {
    const int64_t begin = all.empty() ? 0 : all.back().end;
    for (auto& entries : cache)
      for (int64_t i = begin; i < end; ++i) entries.push_back(static_cast<uint32_t>(i));
    const auto kept = compress(work, budget, end, cache);
    cache = kept->owners;
    all.push_back({end, kept});
  }
  return all;
}

/// As a prompt of what is there, its entries numbered from 0.
std::shared_ptr<KeptSets> ChunkedPrefill::compress(const LayerWork& work, int64_t budget,
                                                   int64_t end, const Sets& cache) const {
  const Range newest = held_by_all(cache, end);
  const TraceInfo info = cache_info(work.info(), std::ssize(cache[0]), newest);
  const LayerTrace layer = cache_layer(work.trace(), info, cache, newest);
  LayerWork own(layer, work.backend(), work.measured_norm());
  Budget count;
  count.amount = Decimal(budget);
  count.label = std::to_string(budget);
  PolicyRun run({record_}, {count}, info, {work.layer()}, seed_, files_);
  auto kept = std::make_shared<KeptSets>(*run.select(own)[0][0]);
  name_entries(cache, kept->owners);
  name_entries(cache, kept->guarded);
  return kept;
}

}  // namespace kvsim
