#pragma once
#include "sim/backend/cpu/replay_job.hpp"

namespace kvsim {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// out += weight * row of values
inline void add_value(const Tensor& values, int64_t kv_head, int64_t entry, double weight,
                      std::vector<float>& row, std::vector<double>& out) {
  values.read(kv_head, entry, entry + 1, row.data());
  for (size_t c = 0; c < out.size(); ++c) out[c] += weight * static_cast<double>(row[c]);
}

/// One row of the replay (a query head at a later step) in float64 with its own maximum, for kept
/// sets whose scores vanish next to the largest score of the row.
class ExactRow {
 public:
  ExactRow(const ReplayJob& job, int64_t head, int64_t step) : job_(job), head_(head) {
    const LayerTrace& layer = job.layer;
    const size_t d = job.d;
    std::vector<float> query(d), key(d);
    const int64_t query_row = job.first_query + step;
    layer.q.read(head, query_row, query_row + 1, query.data());
    logits_.resize(job.position(step) + 1);
    for (int64_t i = 0; i < std::ssize(logits_); ++i) {
      layer.k.read(head / job.group, i, i + 1, key.data());
      double dot = 0;
      for (size_t j = 0; j < d; ++j)
        dot += static_cast<double>(query[j]) * static_cast<double>(key[j]);
      const double logit = layer.scale * dot;
      logits_[i] = layer.softcap > 0 ? layer.softcap * std::tanh(logit / layer.softcap) : logit;
    }
  }

  struct Result {
    double log_mass = 0;         ///< log of the sum of exp(logit) over the kept prompt entries
    double importance = 0;       ///< sum of exp(logit) * importance over them / exp(log_mass)
    std::vector<double> output;  ///< [dv]
  };
  /// `kept` prompt entries and all later positions up to the step's.
  Result attend(std::span<const uint32_t> kept, bool output) const {
    const int64_t n = job_.n;
    const int64_t visible = std::ssize(logits_);
    double prompt_maximum = -kInfinity;
    for (const uint32_t i : kept) prompt_maximum = std::max(prompt_maximum, logits_[i]);
    double maximum = prompt_maximum;
    for (size_t i = n; i < logits_.size(); ++i) maximum = std::max(maximum, logits_[i]);

    Result result;
    const float* const weights = job_.request.importance != nullptr
                                     ? job_.request.importance +
                                           head_ * job_.request.importance_columns
                                     : nullptr;
    double mass = 0, weighted = 0;
    for (const uint32_t i : kept) {
      const double e = std::exp(logits_[i] - prompt_maximum);
      mass += e;
      if (weights != nullptr) weighted += e * static_cast<double>(weights[i]);
    }
    result.log_mass = kept.empty() ? -kInfinity : prompt_maximum + std::log(mass);
    result.importance = mass > 0 ? weighted / mass : 0;
    if (!output) return result;

    const int64_t kv_head = head_ / job_.group;
    double denominator = sink_mass(sink_logit(job_.layer, head_), maximum);
    std::vector<float> row(job_.dv);
    result.output.assign(job_.dv, 0.0);
    const auto add = [&](int64_t i) {
      const double e = std::exp(logits_[i] - maximum);
      denominator += e;
      if (e > 0) add_value(job_.layer.v, kv_head, i, e, row, result.output);
    };
    for (const uint32_t i : kept) add(i);
    for (int64_t i = n; i < visible; ++i) add(i);
    for (double& x : result.output) x /= denominator;
    return result;
  }

 private:
  const ReplayJob& job_;
  int64_t head_;
  std::vector<double> logits_;  ///< [prompt entries, later positions up to the step's]
};

/// Scores below 2e-38 of the shift were taken as 0. With 10^5 such keys a sum above this is still
/// right to 2e-8; below it the row is done again in float64.
constexpr double kVanishing = 1e-25;

/// Keys whose float32 copy is made at a time: the score kernel reads them at once from the cache.
constexpr int64_t kKeyRun = 192;

/// The fused walk over one tile: some query heads of one KV head x some steps. Rows are head-major,
/// so that the rows of each head are contiguous. One object per thread.
///
/// Later positions, which every set keeps, come first; then prompt keys in chunks. Scores of a
/// chunk are key-major (one contiguous line of tile rows per key); the exponential is taken once
/// for all plans; each plan then walks its keys of the chunk band by band, into one accumulator per
/// band. Sums over bands at the end give every kept set. The shift under the exponential is the
/// row's maximum when it was last raised: it is raised, and everything so far scaled down, only
/// when a score exceeds it by more than kSlack.
class ReplayTile {
 public:
  ReplayTile(const ReplayJob& job, TileMemory& memory) : job_(job), memory_(memory) {}

  /// Fills `rows` of `block`, whose steps are set and whose tables have their sizes.
  void run(const TileRows& rows, ReplayBlock& block) {
    start(rows, block);
    walk_later();
    walk_prompt(block);
  }

 private:
  // Accumulators and sums: those shared by all plans come first.
  static constexpr int64_t kPrompt = 0;
  static constexpr int64_t kLater = 1;
  static constexpr int64_t kShared = kSharedSlots;

  void start(const TileRows& tile, const ReplayBlock& block) {
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
  void score(int64_t first_key, int64_t keys, const int32_t* last_visible) {
    std::fill(maximum_.begin(), maximum_.end(), -std::numeric_limits<float>::infinity());
    std::vector<int32_t> visible(last_visible != nullptr ? maximum_.size() : 0);
    for (int64_t at = 0; at < keys; at += kKeyRun) {
      const int64_t count = std::min(kKeyRun, keys - at);
      for (size_t r = 0; r < visible.size(); ++r)
        visible[r] = last_visible[r] - static_cast<int32_t>(at);
      const int64_t first = first_key + at, next = first + count;
      ScoreTask task = job_.operands.task(
          job_.operands.load_keys(kv_head_, first, next, memory_.keys), count,
          memory_.queries.data(), ld_);
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
  void raise_shift() {
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
  void add_all(int64_t slot, int64_t first_key, int64_t keys) {
    if (!has_outputs()) return;
    values_ = {};
    set_values(job_.layer.v, kv_head_, {first_key, first_key + keys}, memory_.values, values_);
    ProductTask task = values_;
    task.count = keys;
    task.rows = rows_;
    add_product(slot, 0, 0, task);
  }
  /// Importance of the keys for the heads of the tile, key-major; null when there is none.
  const TileWeights* load_weights(int64_t first_key, int64_t keys) {
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
  /// With the last chunk, every band of a plan is finished as soon as it has been walked: its
  /// accumulator is still near.
  void walk_prompt(ReplayBlock& block) {
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
  void walk_plan(size_t number, int64_t chunk, const TileWeights* weights, ReplayBlock& block) {
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
  void walk_later() {
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
  /// Adds the products of some keys of the chunk in memory to one accumulator.
  void add_product(int64_t slot, int64_t part, int64_t first_row, const ProductTask& product) {
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
  void finish_full(ReplayBlock& block) {
    std::vector<float> inverse(rows_);
    sink_.assign(rows_, 0.0);
    for (int64_t r = 0; r < rows_; ++r) {
      const size_t at = r;
      const int64_t head = first_head_ + head_of(r), step = column_of(r);
      sink_[at] = sink_mass(sink_logit(job_.layer, head), static_cast<double>(shift_[at]));
      const double total = mass(kPrompt)[r] + mass(kLater)[r] + sink_[at];
      inverse_[at] = 1.0 / total;
      inverse[at] = static_cast<float>(inverse_[at]);
      block.prompt_attention(head, step) = mass(kPrompt)[r] * inverse_[at];
      block.later_attention(head, step) = mass(kLater)[r] * inverse_[at];
      const bool weighted = !importances_.empty();
      block.prompt_importance(head, step) = weighted ? importance(kPrompt)[r] * inverse_[at] : 0.0;
      block.later_importance(head, step) = weighted ? importance(kLater)[r] * inverse_[at] : 0.0;
    }
    if (has_outputs()) emit_full(inverse, block);
  }
  void emit_full(const std::vector<float>& inverse, ReplayBlock& block) {
    for (int64_t head = 0; head < heads_; ++head) {
      const int64_t row = accumulator_row(false, head);
      EmitTask task{};
      task.previous = accumulator(kLater) + row * job_.ldv;
      task.current = accumulator(kPrompt) + row * job_.ldv;
      task.ld = job_.ldv;
      task.rows = steps_;
      task.columns = job_.dv;
      task.inverse = inverse.data() + row;
      task.out = block.z.data() + output_of(head);
      job_.kernels.emit(task);
    }
  }
  /// The set that ends with a band; its rows are those of whole heads. `running` is the accumulator
  /// of the set before, and becomes that of this one.
  void finish_band(const PlanWalk& plan, const ReplayPlan& request, int64_t band, Range rows,
                   const float*& running, ReplayBlock& block) {
    const int64_t set = kShared + plan.first_set + band;
    for (int64_t r = rows.begin; r < rows.end && band > 0; ++r) {  // bands become sets
      mass(set)[r] += mass(set - 1)[r];
      if (!importances_.empty()) importance(set)[r] += importance(set - 1)[r];
    }
    const bool outputs = has_outputs() && !plan.masses_only;
    const int64_t first = rows.begin / steps_;
    float* const own = outputs && used(plan.slot(band), plan.per_query_head ? first : 0)
                           ? accumulator(plan.slot(band)) +
                                 accumulator_row(plan.per_query_head, first) * job_.ldv
                           : nullptr;
    float* const current = own == running ? nullptr : own;  // else it holds the set before already
    for (int64_t head = first; head * steps_ < rows.end; ++head) {
      const int64_t at = (head - first) * steps_ * job_.ldv;
      finish_masses(plan, request, band, head, block);
      if (outputs)
        finish_output(plan, request, band, head, running + at,
                      current != nullptr ? current + at : nullptr, block);
    }
    if (current != nullptr) running = current;
    for (int64_t r = rows.begin; r < rows.end; ++r)
      if (mass(set)[r] + mass(kLater)[r] < kVanishing) redo(plan, request, band, r, block);
  }
  void finish_masses(const PlanWalk& plan, const ReplayPlan& request, int64_t band, int64_t head,
                     ReplayBlock& block) {
    const int64_t set = plan.first_set + band, query_head = first_head_ + head;
    const bool everything = chain(plan, request, head).end[band] == job_.n;
    const double* const masses = mass(kShared + set);
    const double* const weighted = everything || importances_.empty() ? nullptr
                                                                      : importance(kShared + set);
    const auto all = block.prompt_attention.row(query_head);
    const auto all_weighted = block.prompt_importance.row(query_head);
    const auto attention = block.kept_attention[set].row(query_head);
    const auto kept = block.kept_importance[set].row(query_head);
    for (int64_t s = 0; s < steps_; ++s) {
      const int64_t r = head * steps_ + s;
      const auto at = static_cast<size_t>(step_[s] - first_step_);
      const double inverse = inverse_[r];
      // A part is never larger than the whole, also in the last bit.
      attention[at] = everything ? all[at] : std::min(all[at], masses[r] * inverse);
      kept[at] = weighted == nullptr ? all_weighted[at]
                                     : std::min(all_weighted[at], weighted[r] * inverse);
    }
  }
  void finish_output(const PlanWalk& plan, const ReplayPlan& request, int64_t band, int64_t head,
                     const float* previous, float* current, ReplayBlock& block) {
    const int64_t set = plan.first_set + band;
    float inverse[kTileRows];
    for (int64_t s = 0; s < steps_; ++s) {
      const int64_t r = head * steps_ + s;
      const double kept = mass(kShared + set)[r] + mass(kLater)[r] + sink_[r];
      inverse[s] = static_cast<float>(kept > 0 ? 1.0 / kept : 0.0);
    }
    EmitTask task{};
    task.previous = previous;
    task.current = current;
    task.ld = job_.ldv;
    task.rows = steps_;
    task.columns = job_.dv;
    task.inverse = inverse;
    task.z = block.z.data() + output_of(head);
    task.out = block.delta[set] + output_of(head);
    job_.kernels.emit(task);
    // Nothing was dropped: the order of the sums must not show.
    if (chain(plan, request, head).end[band] == job_.n)
      std::fill_n(task.out, steps_ * job_.dv, 0.0f);
  }
  void redo(const PlanWalk& plan, const ReplayPlan& request, int64_t band, int64_t row,
            ReplayBlock& block) const {
    const KeptChain& kept = chain(plan, request, head_of(row));
    const int64_t end = kept.end[band];
    if (end == job_.n) return;
    const int64_t head = first_head_ + head_of(row), step = column_of(row);
    const bool outputs = !plan.masses_only && has_outputs();
    const ExactRow exact(job_, head, step_of(row));
    const ExactRow::Result result = exact.attend({kept.order.data(), static_cast<size_t>(end)},
                                                 outputs);
    const size_t set = plan.first_set + band;
    const double shift = static_cast<double>(shift_[row]);
    const double fraction = std::exp(result.log_mass - shift) * inverse_[row];
    block.kept_attention[set](head, step) = fraction;
    block.kept_importance[set](head, step) = fraction * result.importance;
    if (!outputs) return;
    const int64_t out = output_of(head_of(row)) + row % steps_ * job_.dv;
    for (int64_t c = 0; c < job_.dv; ++c) {
      const double z = static_cast<double>(block.z[out + c]);
      block.delta[set][out + c] = static_cast<float>(result.output[c] - z);
    }
  }

  /// Whether an accumulator holds anything: a first product overwrites what an earlier tile left.
  /// Plans per query head have one part per head in it, the others part 0 only.
  uint8_t& used(int64_t slot, int64_t part) { return used_[slot * heads_ + part]; }
  float* accumulator(int64_t slot) { return memory_.accumulators.data() + slot * slot_size_; }
  double* mass(int64_t set) { return masses_.data() + set * ld_; }
  double* importance(int64_t set) { return importances_.data() + set * ld_; }
  int64_t head_of(int64_t row) const { return row / steps_; }
  int64_t step_of(int64_t row) const { return step_[row % steps_]; }
  /// Column of the block's tables.
  int64_t column_of(int64_t row) const { return step_of(row) - first_step_; }
  /// Where the outputs of a head's first step are among those of the block.
  int64_t output_of(int64_t head) const {
    return ((first_head_ + head) * outputs_ + first_output_) * job_.dv;
  }
  bool has_outputs() const { return first_output_ >= 0; }
  const KeptChain& chain(const PlanWalk& plan, const ReplayPlan& request, int64_t head) const {
    const int64_t query_head = first_head_ + head;
    return request.owners[plan.per_query_head ? query_head : query_head / job_.group];
  }
  /// First accumulator row of a head: plans per query head pad each head's rows for themselves.
  int64_t accumulator_row(bool per_query_head, int64_t head) const {
    return head * (per_query_head ? padded(steps_, kRowStep) : steps_);
  }

  const ReplayJob& job_;
  int64_t first_head_ = 0;
  int64_t heads_ = 0;
  int64_t kv_head_ = 0;
  std::vector<int64_t> step_;  ///< of the tile, ascending
  int64_t steps_ = 0;          ///< how many
  int64_t first_step_ = 0;     ///< of the block
  int64_t outputs_ = 0;        ///< of the block
  int64_t first_output_ = -1;  ///< of the tile among them; -1: sums only
  int64_t rows_ = 0;           ///< heads * steps
  int64_t ld_ = 0;             ///< rows padded to whole groups and vectors
  int64_t slot_size_ = 0;      ///< floats of one accumulator
  bool first_chunk_ = true;

  TileMemory& memory_;
  std::vector<uint8_t> used_;        ///< [kShared + slots][heads]
  std::vector<double> masses_;       ///< [sets + 2][ld]: prompt, later, then the sets' bands
  std::vector<double> importances_;  ///< likewise
  std::vector<float> shift_;         ///< [ld]
  std::vector<float> maximum_;       ///< [ld] of the chunk
  std::vector<double> inverse_;      ///< [ld] 1 / all of the softmax, sink included
  std::vector<double> sink_;         ///< [ld]
  std::vector<int32_t> head_;        ///< [ld] column of the weights
  ProductTask values_{};             ///< a product whose values are those of the chunk
  TileWeights weights_{};
};

}  // namespace kvsim
