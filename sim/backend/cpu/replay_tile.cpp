#include "sim/backend/cpu/replay_tile.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace kvsim {
namespace {

/// exp(20) times any number of keys is far from overflow, and what is scaled down when the shift is
/// raised weighs less than 2e-9 of the row, so the rounding of the factor does not matter.
constexpr float kSlack = 20.0f;

/// Keys whose float32 copy is made at a time: the score kernel reads them at once from the cache.
constexpr int64_t kKeyRun = 192;

}  // namespace

void ReplayTile::run(int64_t first_head, int64_t heads, ReplayBlock& block) {
  start(first_head, heads, block);
  walk_later();
  walk_prompt(block);
}

void ReplayTile::start(int64_t first_head, int64_t heads, const ReplayBlock& block) {
  first_head_ = first_head;
  heads_ = heads;
  kv_head_ = first_head / job_.group;
  first_step_ = block.first_step;
  steps_ = block.steps;
  rows_ = heads * steps_;
  ld_ = padded(padded(rows_, kRowStep), kPad);
  slot_size_ = std::max(padded(rows_, kRowStep), heads * padded(steps_, kRowStep)) * job_.ldv;
  first_chunk_ = true;

  std::vector<QueryRow> rows;
  for (int64_t h = 0; h < heads; ++h)
    for (int64_t s = 0; s < steps_; ++s)
      rows.push_back({first_head + h, job_.first_query + first_step_ + s});
  load_queries(job_.layer, rows, ld_, memory_.queries.reserve(job_.d * ld_));

  const size_t ld = static_cast<size_t>(ld_);
  memory_.accumulators.reserve((kShared + job_.slots) * slot_size_);
  used_.assign(static_cast<size_t>((kShared + job_.slots) * heads), 0);
  masses_.assign(static_cast<size_t>(kShared + job_.sets) * ld, 0.0);
  importances_.assign(job_.request.importance != nullptr ? masses_.size() : 0, 0.0);
  shift_.assign(ld, 0.0f);
  maximum_.assign(ld, 0.0f);
  total_.assign(ld, 1.0);
  head_.assign(ld, static_cast<int32_t>(heads - 1));
  for (int64_t r = 0; r < rows_; ++r)
    head_[static_cast<size_t>(r)] = static_cast<int32_t>(head_of(r));
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
    ScoreTask task{};
    task.k = load_rows(job_.layer.k, kv_head_, first_key + at, first_key + at + count, job_.d,
                       memory_.keys);
    task.keys = count;
    task.d = job_.d;
    task.qt = memory_.queries.data();
    task.ld = ld_;
    task.softcap = static_cast<float>(job_.layer.softcap);
    task.last_visible = last_visible != nullptr ? visible.data() : nullptr;
    task.s = memory_.scores.data() + at * ld_;
    task.maximum = maximum_.data();
    job_.kernels.scores(task);
  }
}

/// Makes the shift of every row fit for the chunk whose maximum is in maximum_.
void ReplayTile::raise_shift() {
  for (int64_t r = 0; r < rows_; ++r) {
    float& shift = shift_[static_cast<size_t>(r)];
    const float top = maximum_[static_cast<size_t>(r)];
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
      for (int64_t b = 0; b < plan.bands; ++b) scale(plan.slot(b), part, row);
    }
  }
  first_chunk_ = false;
}

void ReplayTile::load_chunk(int64_t first_key, int64_t keys) {
  values_ =
      load_rows(job_.layer.v, kv_head_, first_key, first_key + keys, job_.ldv, memory_.values);
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
void ReplayTile::add_product(int64_t slot, int64_t part, int64_t first_row, ProductTask task) {
  task.e = memory_.scores.data() + first_row;
  task.lde = ld_;
  task.v = values_;
  task.ldv = task.lda = task.columns = job_.ldv;
  task.acc = accumulator(slot) + part * padded(steps_, kRowStep) * job_.ldv;
  task.fresh = !used(slot, part);
  job_.kernels.product(task);
  used(slot, part) = 1;
}

/// With the last chunk, every plan is finished as soon as it has been walked: its accumulators are
/// still near. If the whole prompt is one chunk, all plans share the same few.
void ReplayTile::walk_prompt(ReplayBlock& block) {
  for (int64_t c = 0; c < job_.chunks(); ++c) {
    const int64_t first = c * job_.chunk;
    const int64_t keys = std::min(job_.chunk, job_.n - first);
    score(first, keys, nullptr);
    raise_shift();
    const TileWeights* const weights = load_weights(first, keys);
    job_.kernels.exponentiate(memory_.scores.data(), keys, ld_, shift_.data(), weights,
                              mass(kPrompt), weights != nullptr ? importance(kPrompt) : nullptr);
    load_chunk(first, keys);
    ProductTask task{};
    task.count = keys;
    task.rows = rows_;
    add_product(kPrompt, 0, 0, task);
    const bool last = c + 1 == job_.chunks();
    if (last) finish_full(block);
    for (size_t p = 0; p < job_.plans.size(); ++p) {
      const PlanWalk& plan = job_.plans[p];
      for (int64_t b = 0; b < plan.bands && c == 0 && !plan.masses_only; ++b)
        for (int64_t part = 0; part < heads_; ++part) used(plan.slot(b), part) = 0;
      walk_plan(plan, c, weights);
      if (last) finish_plan(plan, job_.request.plans[p], block);
    }
  }
}

void ReplayTile::walk_plan(const PlanWalk& plan, int64_t chunk, const TileWeights* weights) {
  const int64_t parts = plan.per_query_head ? heads_ : 1;
  const int64_t rows = plan.per_query_head ? steps_ : rows_;
  for (int64_t part = 0; part < parts; ++part) {
    const int64_t owner = plan.per_query_head ? first_head_ + part : kv_head_;
    const ChunkedChain& chain = plan.owners[static_cast<size_t>(owner)];
    int64_t left = chain.count(chunk);
    for (int64_t band = 0; band < plan.bands; ++band) {
      const std::span<const uint16_t> keys = chain.keys(chunk, band);
      if (keys.empty()) continue;
      const int64_t set = kShared + plan.first_set + band;
      const int64_t count = static_cast<int64_t>(keys.size());
      left -= count;
      SumTask sum{};
      sum.index = keys.data();
      sum.count = count;
      sum.e = memory_.scores.data();
      sum.ld = ld_;
      sum.begin = part * steps_;
      sum.end = sum.begin + rows;
      sum.weights = weights;
      sum.mass = mass(set);
      sum.importance = weights != nullptr ? importance(set) : nullptr;
      if (plan.masses_only) {
        job_.kernels.sums(sum);
        continue;
      }
      ProductTask task{};
      task.index = keys.data();
      task.count = count;
      task.ahead = left;
      task.sums = &sum;
      task.rows = rows;
      add_product(plan.slot(band), part, sum.begin, task);
    }
  }
}

/// Later positions n..t: causal, kept by every set.
void ReplayTile::walk_later() {
  const int64_t stop = job_.position(first_step_ + steps_ - 1) + 1;
  std::vector<int32_t> last_visible(static_cast<size_t>(ld_));
  for (int64_t first = job_.n; first < stop; first += job_.chunk) {
    const int64_t keys = std::min(job_.chunk, stop - first);
    for (int64_t r = 0; r < rows_; ++r) {
      const int64_t position = job_.position(first_step_ + r % steps_);
      last_visible[static_cast<size_t>(r)] =
          static_cast<int32_t>(std::clamp<int64_t>(position - first, -1, keys));
    }
    score(first, keys, last_visible.data());
    raise_shift();
    const TileWeights* const weights =
        job_.request.later_importance ? load_weights(first, keys) : nullptr;
    job_.kernels.exponentiate(memory_.scores.data(), keys, ld_, shift_.data(), weights,
                              mass(kLater), weights != nullptr ? importance(kLater) : nullptr);
    load_chunk(first, keys);
    ProductTask task{};
    task.count = keys;
    task.rows = rows_;
    add_product(kLater, 0, 0, task);
  }
}

}  // namespace kvsim
