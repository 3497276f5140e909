#include "sim/backend/cpu/replay_job.hpp"
#include "sim/backend/cpu/verbs.hpp"

namespace kvsim {
namespace {

/// Keys whose float32 copy is made at a time: the score kernel reads them at once from the cache.
constexpr int64_t kKeyRun = 192;

}  // namespace

void ReplayTile::run(const TileRows& rows, ReplayBlock& block) {
  start(rows, block);
  walk_later();
  walk_prompt(block);
}

void ReplayTile::start(const TileRows& tile, const ReplayBlock& block) {
  first_head_ = tile.first_head;
  heads_ = tile.heads;
  kv_head_ = first_head_ / job_.group;
  step_ = tile.steps;
  steps_ = std::ssize(step_);
  first_step_ = block.first_step;
  outputs_ = std::ssize(block.output_steps);
  first_output_ = tile.first_output;
  rows_ = heads_ * steps_;
  ld_ = padded(padded(rows_, kRowStep), kPad);
  slot_size_ = std::max(padded(rows_, kRowStep), heads_ * padded(steps_, kRowStep)) * job_.ldv;
  first_chunk_ = true;

  std::vector<QueryRow> rows;
  for (int64_t h = 0; h < heads_; ++h)
    for (const int64_t step : step_) rows.push_back({first_head_ + h, job_.first_query + step});
  const ScoreOperands& operands = job_.operands;
  operands.load_queries(rows, ld_, memory_.queries.reserve(operands.depth() * ld_));

  const size_t ld = ld_;
  if (has_outputs()) memory_.accumulators.reserve((kShared + job_.slots) * slot_size_);
  used_.assign((kShared + job_.slots) * heads_, 0);
  masses_.assign(static_cast<size_t>(kShared + job_.sets) * ld, 0.0);
  importances_.assign(job_.request.importance != nullptr ? masses_.size() : 0, 0.0);
  shift_.assign(ld, 0.0f);
  maximum_.assign(ld, 0.0f);
  inverse_.assign(ld, 1.0);
  head_.assign(ld, static_cast<int32_t>(heads_ - 1));
  for (int64_t r = 0; r < rows_; ++r) head_[r] = static_cast<int32_t>(head_of(r));
  // Product kernels work on whole groups of rows and may read beyond the last score line.
  memory_.scores.reserve(job_.chunk * ld_ + kPad);
}

/// Scores of `keys` keys from first_key on, into scores_, and their maximum into maximum_.
void ReplayTile::score(int64_t first_key, int64_t keys, const int32_t* last_visible) {
  std::fill(maximum_.begin(), maximum_.end(), -std::numeric_limits<float>::infinity());
  std::vector<int32_t> visible(last_visible != nullptr ? maximum_.size() : 0);
  for (int64_t at = 0; at < keys; at += kKeyRun) {
    const int64_t count = std::min(kKeyRun, keys - at);
    for (size_t r = 0; r < visible.size(); ++r)
      visible[r] = last_visible[r] - static_cast<int32_t>(at);
    const int64_t first = first_key + at, next = first + count;
    ScoreTask task = job_.operands.task(
        job_.operands.load_keys(kv_head_, first, next, memory_.keys), count, memory_.queries.data(),
        ld_);
    task.last_visible = last_visible != nullptr ? visible.data() : nullptr;
    task.s = memory_.scores.data() + at * ld_;
    task.maximum = maximum_.data();
    task.block = job_.shapes.score_block;
    const auto ahead = stored_rows(job_.layer.k, kv_head_, next,
                                   std::min(next + kKeyRun, first_key + keys));
    task.ahead = ahead.data();
    task.ahead_bytes = std::ssize(ahead);
    job_.kernels.scores(task);
  }
}

/// Makes the shift of every row fit for the chunk whose maximum is in maximum_.
void ReplayTile::raise_shift() {
  for (int64_t r = 0; r < rows_; ++r) {
    float& shift = shift_[r];
    const float top = maximum_[r];
    if (first_chunk_) {
      shift = top;
      continue;
    }
    if (!(top > shift + kSlack)) continue;
    const double factor = std::exp(static_cast<double>(shift) - static_cast<double>(top));
    shift = top;
    for (int64_t set = 0; set < kShared + job_.sets; ++set) {
      mass(set)[r] *= factor;
      if (!importances_.empty()) importance(set)[r] *= factor;
    }
    const auto scale = [&](int64_t slot, int64_t part, int64_t row) {
      if (!used(slot, part)) return;
      job_.kernels.scale_row(accumulator(slot) + row * job_.ldv, job_.ldv,
                             static_cast<float>(factor));
    };
    scale(kPrompt, 0, r);
    scale(kLater, 0, r);
    for (const PlanWalk& plan : job_.plans) {
      if (plan.masses_only) continue;
      const int64_t part = plan.per_query_head ? head_of(r) : 0;
      const int64_t row = accumulator_row(plan.per_query_head, head_of(r)) + r % steps_;
      for (int64_t at = 0; at < plan.slots(); ++at) scale(plan.first_slot + at, part, row);
    }
  }
  first_chunk_ = false;
}

/// Adds the products of all keys of a chunk, and leaves its values for those of the plans.
void ReplayTile::add_all(int64_t slot, int64_t first_key, int64_t keys) {
  if (!has_outputs()) return;
  values_ = {};
  set_values(job_.layer.v, kv_head_, {first_key, first_key + keys}, memory_.values, values_);
  ProductTask task = values_;
  task.count = keys;
  task.rows = rows_;
  add_product(slot, 0, 0, task);
}

/// Importance of the keys for the heads of the tile, key-major; null when there is none.
const TileWeights* ReplayTile::load_weights(int64_t first_key, int64_t keys) {
  const float* const all = job_.request.importance;
  if (all == nullptr || first_key >= job_.request.importance_columns) return nullptr;
  const int64_t ld = heads_ + kPad;
  float* const out = memory_.weights.reserve(keys * ld);
  std::fill_n(out, keys * ld, 0.0f);
  for (int64_t h = 0; h < heads_; ++h) {
    const float* const in = all + (first_head_ + h) * job_.request.importance_columns + first_key;
    for (int64_t i = 0; i < keys; ++i) out[i * ld + h] = in[i];
  }
  weights_ = {.values = out, .ld = ld, .head = head_.data()};
  return &weights_;
}

/// Adds the products of some keys of the chunk in memory to one accumulator.
void ReplayTile::add_product(int64_t slot, int64_t part, int64_t first_row,
                             const ProductTask& product) {
  ProductTask task = product;
  task.e = memory_.scores.data() + first_row;
  task.lde = ld_;
  task.lda = job_.ldv;
  task.acc = accumulator(slot) + part * padded(steps_, kRowStep) * job_.ldv;
  task.fresh = !used(slot, part);
  task.block = task.index != nullptr ? job_.shapes.index_block : job_.shapes.row_block;
  job_.kernels.product(task);
  used(slot, part) = 1;
}

/// With the last chunk, every band of a plan is finished as soon as it has been walked: its
/// accumulator is still near.
void ReplayTile::walk_prompt(ReplayBlock& block) {
  for (int64_t c = 0; c < job_.chunks(); ++c) {
    const int64_t first = c * job_.chunk;
    const int64_t keys = std::min(job_.chunk, job_.n - first);
    score(first, keys, nullptr);
    raise_shift();
    const TileWeights* const weights = load_weights(first, keys);
    job_.kernels.exponentiate(memory_.scores.data(), keys, ld_, shift_.data(), weights,
                              mass(kPrompt), weights != nullptr ? importance(kPrompt) : nullptr);
    add_all(kPrompt, first, keys);
    if (c + 1 == job_.chunks()) finish_full(block);
    for (size_t plan = 0; plan < job_.plans.size(); ++plan) walk_plan(plan, c, weights, block);
  }
}

void ReplayTile::walk_plan(size_t number, int64_t chunk, const TileWeights* weights,
                           ReplayBlock& block) {
  const PlanWalk& plan = job_.plans[number];
  const bool outputs = has_outputs() && !plan.masses_only, last = chunk + 1 == job_.chunks();
  for (int64_t at = 0; at < plan.slots() && chunk == 0 && outputs; ++at)
    for (int64_t part = 0; part < heads_; ++part) used(plan.first_slot + at, part) = 0;
  const int64_t parts = plan.per_query_head ? heads_ : 1;
  const int64_t rows = plan.per_query_head ? steps_ : rows_;
  for (int64_t part = 0; part < parts; ++part) {
    const int64_t owner = plan.per_query_head ? first_head_ + part : kv_head_;
    const ChunkedChain& chain = plan.owners[owner];
    const Range range{part * steps_, part * steps_ + rows};
    const float* running = outputs ? accumulator(kLater) + range.begin * job_.ldv : nullptr;
    int64_t left = chain.count(chunk);
    for (int64_t band = 0; band < plan.bands; ++band) {
      const std::span<const uint16_t> keys = chain.keys(chunk, band);
      const int64_t set = kShared + plan.first_set + band;
      const int64_t count = std::ssize(keys);
      left -= count;
      SumTask sum{};
      sum.index = keys.data();
      sum.count = count;
      sum.e = memory_.scores.data();
      sum.ld = ld_;
      sum.begin = range.begin;
      sum.end = range.end;
      sum.weights = weights;
      sum.mass = mass(set);
      sum.importance = weights != nullptr ? importance(set) : nullptr;
      if (count > 0 && !outputs) job_.kernels.sums(sum);
      ProductTask task = values_;
      task.index = keys.data();
      task.count = count;
      task.ahead = left;
      task.sums = &sum;
      task.rows = rows;
      if (count > 0 && outputs) add_product(plan.slot(band), part, range.begin, task);
      if (last) finish_band(plan, job_.request.plans[number], band, range, running, block);
    }
  }
}

/// Later positions n..t: causal, kept by every set.
void ReplayTile::walk_later() {
  const int64_t stop = job_.position(step_.back()) + 1;
  std::vector<int32_t> last_visible(ld_);
  for (int64_t first = job_.n; first < stop; first += job_.chunk) {
    const int64_t keys = std::min(job_.chunk, stop - first);
    for (int64_t r = 0; r < rows_; ++r) {
      const int64_t position = job_.position(step_of(r));
      last_visible[r] = static_cast<int32_t>(std::clamp<int64_t>(position - first, -1, keys));
    }
    score(first, keys, last_visible.data());
    raise_shift();
    const TileWeights* const weights = job_.request.later_importance ? load_weights(first, keys)
                                                                     : nullptr;
    job_.kernels.exponentiate(memory_.scores.data(), keys, ld_, shift_.data(), weights,
                              mass(kLater), weights != nullptr ? importance(kLater) : nullptr);
    add_all(kLater, first, keys);
  }
}

}  // namespace kvsim
