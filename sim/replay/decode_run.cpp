#include "sim/replay/decode.hpp"
#include "sim/stages/merge/merge.hpp"

namespace kvsim {
namespace {

/// W^h of heads first..first+count-1, [dv][D] each.
std::vector<Table<float>> output_slices(const LayerTrace& layer, int first, int count) {
  std::vector<Table<float>> slices;
  for (int x = 0; x < count; ++x) {
    Table<float>& slice = slices.emplace_back(layer.wo.dim(1), layer.wo.dim(2));
    layer.wo.read(first + x, 0, layer.wo.dim(1), slice.data());
  }
  return slices;
}

/// [n] 1: on the record's whitelist.
std::vector<uint8_t> listed_entries(const TraceInfo& info, const Settings& settings) {
  std::vector<uint8_t> listed(info.prompt_len, 0);
  for (const Range& range :
       resolve_spans(settings.list(keys::whitelist), info.spans, info.prompt_len))
    std::fill(listed.begin() + range.begin, listed.begin() + range.end, uint8_t{1});
  return listed;
}

}  // namespace

const float* DecodeBlock::attention(int head, int64_t step) const {
  const int group = heads.front().heads;
  return heads[head / group].attention_row(head % group, step);
}
const float* DecodeBlock::logits(int head, int64_t step) const {
  const int group = heads.front().heads;
  return heads[head / group].logit_row(head % group, step);
}
double DecodeBlock::log_sum_exp(int head, int64_t step) const {
  const AttentionBlock& block = heads[head / heads.front().heads];
  return block.log_sum_exp[(head % block.heads) * block.rows + step];
}
const float* DecodeBlock::z(int head, int64_t step, int64_t width) const {
  const AttentionBlock& block = heads[head / heads.front().heads];
  return block.outputs.data() + ((head % block.heads) * block.rows + step) * width;
}

DecodeSeries::DecodeSeries(int64_t heads, int64_t steps, int64_t width, size_t parts)
    : kept(ShareSums::of(heads, steps)), guarded(kept), guarded_entries(heads, steps),
      part_kept(parts, Table<double>(heads, steps)),
      part_guarded(parts, Table<double>(heads, steps)), delta(heads * steps * width),
      merges(heads, steps) {}

DecodeRun::~DecodeRun() = default;

DecodeRun::DecodeRun(LayerWork& work, const KeptSets& kept, const Settings& settings, uint64_t seed)
    : work_(work), kept_(kept), settings_(settings), seed_(seed),
      whitelisted_(listed_entries(work.info(), settings)), scratch_(kept.owners.size()),
      reads_attention_(scores_rows(settings) || merges(settings) ||
                       chosen<Merge>(settings).uses_attention()) {
  find_newest_protected();
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
  for (PairMerge& pair : compressed.pairs) add_pair(std::move(pair));
  if (prompt_) {
    scores_ = prompt_->take_scores();
    deviations_ = prompt_->take_deviations();
    prompt_.reset();
  }
  start_scorers();
  start_memory(compressed.evicted);
  for (size_t o = 0; o < owners_.size(); ++o) {
    merge_statistics(o, compressed.steps[o]);
    erase_statistics(o, compressed.evicted[o]);
  }
  const Weight& weight = chosen<Weight>(settings_);
  if (weight.changes_nothing()) return;
  weights_.resize(owners_.size());
  outputs_.resize(owners_.size());
  for (size_t o = 0; weight.needs_outputs() && o < owners_.size(); ++o)
    outputs_[o] = output_slices(work_.trace(), owners_[o].first_head(), owners_[o].heads());
  if (chosen<Normalize>(settings_).per_entry()) {
    token_weight_.assign(work_.info().total_len, 0.0);
    std::set<int64_t> held;
    for (const SlotCache& cache : owners_)
      held.insert(cache.positions().begin(), cache.positions().end());
    for (const int64_t position : held) sum_over_heads(position);
  }
  for (size_t o = 0; o < owners_.size(); ++o) {
    weights_[o].resize(owners_[o].size());
    for (int64_t s = 0; s < owners_[o].size(); ++s) weigh(o, s);
  }
}

/// Weight of an entry in all heads together, by its own values: other heads may no longer hold it.
void DecodeRun::sum_over_heads(int64_t position) {
  std::vector<float> value(work_.value_dim());
  double& sum = token_weight_[position];
  sum = 0;
  for (size_t o = 0; o < owners_.size(); ++o) {
    work_.trace().v.read(owners_[o].first_head() / work_.group_size(), position, position + 1,
                         value.data());
    sum += chosen<Weight>(settings_).of_value(value, outputs_[o]);
  }
}

void DecodeRun::weigh(size_t owner, int64_t slot) {
  const SlotCache& cache = owners_[owner];
  double weight = chosen<Weight>(settings_).of_value(cache.value(slot), outputs_[owner]);
  const double sum = token_weight_.empty() ? 0 : token_weight_[cache.position(slot)];
  if (sum != 0) weight /= sum;  // a divisor of 0 leaves the score
  weights_[owner][slot] = weight;
}

void DecodeRun::for_owners(int64_t steps, const std::function<void(size_t)>& body) const {
  constexpr int64_t kWorthThreads = int64_t{1} << 22;  // about a millisecond of one core
  int64_t work = 0;
  for (const SlotCache& cache : owners_)
    work += steps * cache.size() * cache.heads() * (cache.key_dim() + cache.value_dim());
  if (work < kWorthThreads) {
    for (size_t owner = 0; owner < owners_.size(); ++owner) body(owner);
    return;
  }
  parallel_for(std::ssize(owners_), [&](int64_t owner) { body(owner); });
}

/// Does no owner ask another one for anything? Each then goes through all steps of a block at once,
/// while its keys and values are near.
bool DecodeRun::owners_are_apart() const {
  const Merge& merge = chosen<Merge>(settings_);
  const bool of_layer = !scores_.empty() && chosen<Group>(settings_).span() == GroupSpan::layer;
  return !merge.merges() && !merge.uses_attention() && !chosen<Union>(settings_).unites() &&
         token_weight_.empty() && !of_layer;
}

void DecodeRun::run(const DecodeBlock& block, DecodeSeries& series) {
  if (!owners_are_apart()) {
    for (int64_t s = 0; s < block.steps; ++s) step(block, s, series);
    return;
  }
  for_owners(block.steps, [&](size_t owner) {
    for (int64_t s = 0; s < block.steps; ++s) {
      append(owner, block.heads.front().positions[s]);
      attend(owner, block, s, series);
      if (!scores_.empty()) add_row(owner, grouped_rows(owner).values());
      drop(owner, victims(owner));
    }
  });
}

void DecodeRun::step(const DecodeBlock& block, int64_t step, DecodeSeries& series) {
  const int64_t position = block.heads.front().positions[step];
  if (!token_weight_.empty()) sum_over_heads(position);
  for_owners(1, [&](size_t owner) {
    append(owner, position);
    attend(owner, block, step, series);
    see_estimates(owner);
  });
  update_statistics();
  evict();
}

void DecodeRun::append(size_t owner, int64_t position) {
  SlotCache& cache = owners_[owner];
  append_entry(work_.trace(), cache.first_head() / work_.group_size(), position, cache);
  most_slots_[owner] = std::max(most_slots_[owner], cache.size());
  if (!scores_.empty()) scores_[owner]->append();
  if (!deviations_.empty()) deviations_[owner]->append();
  if (!remembered_.empty()) remembered_[owner].push_back(NAN);
  if (!weights_.empty()) {
    weights_[owner].push_back(0);
    weigh(owner, cache.size() - 1);
  }
}

/// Keys of the slots as the query at `position` meets them. With positions=cache slot r moves to
/// position r and the query to its own slot number s; only differences count, so the query stays
/// and slot r moves by (r - its position) + (position - s).
const float* DecodeRun::keys_in_place(size_t owner, int64_t position) {
  const SlotCache& cache = owners_[owner];
  if (!moves_positions(settings_)) return cache.keys();
  Scratch& scratch = scratch_[owner];
  std::vector<float>& moved = scratch.moved_keys;
  moved.assign(cache.keys(), cache.keys() + cache.size() * cache.key_dim());
  for (int64_t r = 0; r < cache.size(); ++r) {
    const int64_t by = (r - cache.position(r)) + (position - (cache.size() - 1));
    if (by == 0) continue;
    scratch.rotation.rotate(
        work_.rotation(), by,
        std::span(moved).subspan(cache.row(r) * cache.key_dim(), cache.key_dim()));
  }
  return moved.data();
}

/// Softmax of the owner's queries over the slots present, log-weights and sink included; z^ - z.
void DecodeRun::attend(size_t owner, const DecodeBlock& block, int64_t step, DecodeSeries& series) {
  const SlotCache& cache = owners_[owner];
  const LayerTrace& layer = work_.trace();
  Scratch& scratch = scratch_[owner];
  const int64_t position = cache.position(cache.size() - 1), width = cache.value_dim();
  const int64_t at = work_.info().first_step() + block.first_step + step;
  const int heads = cache.heads();
  float* const queries = scratch.queries.reserve(heads * cache.key_dim());
  for (int x = 0; x < heads; ++x)
    layer.q.read(cache.first_head() + x, at, at + 1, queries + x * cache.key_dim());
  for (int x = 0; !scorers_.empty() && x < heads; ++x)
    scorers_[owner]->see(x, {queries + x * cache.key_dim(), static_cast<size_t>(cache.key_dim())},
                         position);
  const bool weighs = write_weights(owner);
  SlotRows rows;
  rows.heads = heads;
  rows.sinks = sinks_from(layer, cache.first_head());
  rows.rows = 1;
  rows.queries = queries;
  rows.segments = {{keys_in_place(owner, position), cache.values(), cache.size(),
                    weighs ? scratch.weights.data() : nullptr}};
  if (reads_attention_) rows.attention = scratch.shares.reserve(heads * cache.size());
  if (merges(settings_)) rows.logits = scratch.rows.reserve(heads * cache.size());
  rows.outputs = scratch.outputs.reserve(heads * width);
  work_.backend().attend(layer, {&rows, 1});
  if (reads_attention_) read_attention(owner, weighs);
  for (int x = 0; x < heads; ++x) {
    const int head = cache.first_head() + x;
    const float* const z = block.z(head, step, width);
    const float* const z_hat = rows.outputs + x * width;
    float* const delta = series.delta.data() + (head * block.steps + step) * width;
    for (int64_t c = 0; c < width; ++c) delta[c] = z_hat[c] - z[c];
  }
  compare(owner, block, step, series);
}

/// Log-weights of the cache's rows; false where the record knows none.
bool DecodeRun::write_weights(size_t owner) {
  const Votes& votes = votes_of(settings_);
  if (!votes.weighs()) return false;
  const SlotCache& cache = owners_[owner];
  float* const weights = scratch_[owner].weights.reserve(cache.heads() * cache.size());
  for (int x = 0; x < cache.heads(); ++x)
    for (int64_t s = 0; s < cache.size(); ++s)
      weights[x * cache.size() + cache.row(s)] = static_cast<float>(votes.log_weight(cache, s, x));
  return true;
}

/// Attention and, where slots merge, logits without log-weights, by slot.
void DecodeRun::read_attention(size_t owner, bool weighs) {
  const SlotCache& cache = owners_[owner];
  Scratch& scratch = scratch_[owner];
  const int64_t slots = cache.size();
  if (scratch.attention.columns() != slots) scratch.attention = Table<double>(cache.heads(), slots);
  for (int x = 0; x < cache.heads(); ++x) {
    const float* const shares = scratch.shares.data() + x * slots;
    double* const attention = scratch.attention.row(x).data();
    for (int64_t s = 0; s < slots; ++s) attention[s] = static_cast<double>(shares[cache.row(s)]);
  }
  if (!merges(settings_)) return;
  scratch.logits = Table<double>(cache.heads(), slots);
  for (int x = 0; x < cache.heads(); ++x) {
    const float* const logits = scratch.rows.data() + x * slots;
    const float* const weights = weighs ? scratch.weights.data() + x * slots : nullptr;
    for (int64_t s = 0; s < slots; ++s) {
      const int64_t row = cache.row(s);
      scratch.logits(x, s) = static_cast<double>(logits[row]) -
                             (weighs ? static_cast<double>(weights[row]) : 0.0);
    }
  }
}

/// Estimates see the slots' own logits: keys as stored, no log-weights. Those of the mean query are
/// the mean of the heads' (logits are linear in the query here).
void DecodeRun::see_estimates(size_t owner) {
  SlotCache& cache = owners_[owner];
  Estimates* estimates = cache.estimates();
  if (estimates == nullptr) return;
  const Table<double>& logits = scratch_[owner].logits;
  const auto& merge = chosen<Merge>(settings_);
  if (merge.estimates() == EstimateLines::every_head) {
    for (int x = 0; x < cache.heads(); ++x) estimates->see(x, logits.row(x));
    return;
  }
  std::vector<double> mean(cache.size(), 0.0);
  for (int x = 0; x < cache.heads(); ++x)
    for (int64_t s = 0; s < std::ssize(mean); ++s) mean[s] += logits(x, s) / cache.heads();
  estimates->see(0, mean);
}

}  // namespace kvsim
