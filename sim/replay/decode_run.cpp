#include "sim/replay/decode_run.hpp"

#include "sim/stages/merge/merge.hpp"

namespace kvsim {

DecodeSeries::DecodeSeries(int64_t heads, int64_t steps, int64_t width, size_t parts)
    : kept(ShareSums::of(heads, steps)), guarded(kept), guarded_entries(heads, steps),
      part_kept(parts, Table<double>(heads, steps)),
      part_guarded(parts, Table<double>(heads, steps)), delta(heads * steps * width),
      merges(heads, steps) {}

void OpenPairs::add(PairMerge pair) {
  open_[{pair.first_head, pair.into}] = pairs_.size();
  pairs_.push_back(std::move(pair));
}

void OpenPairs::follow(const MergeOwner& owner, const Settings& settings) {
  const SlotCache& cache = *owner.cache;
  const int64_t now = cache.position(cache.size() - 1);
  const auto end = [&](int64_t slot) {
    const auto found = open_.find(
        {cache.first_head(), static_cast<uint32_t>(cache.position(slot))});
    if (found == open_.end()) return;
    pairs_[found->second].last = now;
    open_.erase(found);
  };
  for (const MergeOwner::Step& step : owner.steps) end(step.into);
  for (const int64_t slot : owner.evicted) end(slot);
  for (PairMerge& pair : pairs_made(owner, settings, now)) add(std::move(pair));
}

DecodeRun::DecodeRun(LayerWork& work, const KeptSets& kept, const Settings& settings, uint64_t seed,
                     bool note_pairs)
    : work_(work), kept_(kept), settings_(settings), seed_(seed), note_pairs_(note_pairs),
      queries_(kept.owners.size()), gains_(kept.owners.size()), protection_(work, kept, settings),
      scores_(work, owners_, kept, settings, seed, protection_),
      victims_(work, owners_, kept, settings, protection_, scores_) {
  for (size_t o = 0; o < kept.owners.size(); ++o) attention_.emplace_back(work, settings);
  if (!scores_rows(settings)) return;
  prompt_ = std::make_unique<PromptStatistics>(work, settings,
                                               decode_segment(settings, kept.budget, work.info()));
}

void DecodeRun::start() {
  FirstEstimates estimates;
  Compressed compressed = compress(work_, kept_, settings_, seed_, memory_, estimates, note_pairs_);
  owners_ = std::move(compressed.owners);
  for (const SlotCache& cache : owners_) most_slots_.push_back(cache.size());
  undefined_scales_ = compressed.undefined_scales;
  scales_ = std::move(compressed.scales);
  for (PairMerge& pair : compressed.pairs) pairs_.add(std::move(pair));
  scores_.start(prompt_.get(), compressed);
  prompt_.reset();
}

/// Each owner that is apart goes through all steps of a block at once, while its keys and values
/// are near.
bool DecodeRun::owners_are_apart() const {
  const Merge& merge = chosen<Merge>(settings_);
  return !merge.merges() && !merge.uses_attention() && scores_.owners_are_apart();
}

void DecodeRun::run(const DecodeBlock& block, DecodeSeries& series) {
  if (!owners_are_apart()) {
    for (int64_t s = 0; s < block.steps; ++s) step(block, s, series);
    return;
  }
  for_owners(owners_, block.steps, [&](size_t owner) {
    for (int64_t s = 0; s < block.steps; ++s) {
      append(owner, block.heads.front().positions[s]);
      attend(owner, block, s, series);
      scores_.see(owner, attention_[owner]);
      drop(owner, victims_.of(owner));
    }
  });
}

void DecodeRun::step(const DecodeBlock& block, int64_t step, DecodeSeries& series) {
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

void DecodeRun::append(size_t owner, int64_t position) {
  SlotCache& cache = owners_[owner];
  append_entry(work_.trace(), cache.first_head() / work_.group_size(), position, cache);
  most_slots_[owner] = std::max(most_slots_[owner], cache.size());
  scores_.append(owner);
}

/// z^ - z of the owner's queries, and what the slots present hold of the full cache.
void DecodeRun::attend(size_t owner, const DecodeBlock& block, int64_t step, DecodeSeries& series) {
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

void DecodeRun::evict() {
  const auto& merge = chosen<Merge>(settings_);
  MergeRequest request{&settings_, seed_, work_.layer(), {}, &memory_};
  request.owners.resize(owners_.size());
  scores_.unite();
  for_owners(owners_, 1, [&](size_t o) {
    MergeOwner& owner = request.owners[o];
    owner.cache = &owners_[o];
    owner.evicted = victims_.of(o);
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
    if (note_pairs_) pairs_.follow(owner, settings_);
    drop(o, owner.evicted);
    if (merges(settings_)) scores_.weights().weigh_all(o);
  }
}

void DecodeRun::drop(size_t owner, std::span<const int64_t> slots) {
  scores_.erase(owner, slots);
  owners_[owner].erase(slots);
}

}  // namespace kvsim
