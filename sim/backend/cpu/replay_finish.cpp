// The end of a tile: sums over bands, fractions, outputs.

#include "sim/backend/cpu/replay_job.hpp"
#include "sim/backend/cpu/verbs.hpp"

namespace kvsim {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// out += weight * row of values
void add_value(const Tensor& values, int64_t kv_head, int64_t entry, double weight,
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
      const int64_t entry = i;
      layer.k.read(head / job.group, entry, entry + 1, key.data());
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

}  // namespace

void ReplayTile::finish_full(ReplayBlock& block) {
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

void ReplayTile::emit_full(const std::vector<float>& inverse, ReplayBlock& block) {
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
void ReplayTile::finish_band(const PlanWalk& plan, const ReplayPlan& request, int64_t band,
                             Range rows, const float*& running, ReplayBlock& block) {
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

void ReplayTile::finish_masses(const PlanWalk& plan, const ReplayPlan& request, int64_t band,
                               int64_t head, ReplayBlock& block) {
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

void ReplayTile::finish_output(const PlanWalk& plan, const ReplayPlan& request, int64_t band,
                               int64_t head, const float* previous, float* current,
                               ReplayBlock& block) {
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
  if (chain(plan, request, head).end[band] == job_.n) std::fill_n(task.out, steps_ * job_.dv, 0.0f);
}

void ReplayTile::redo(const PlanWalk& plan, const ReplayPlan& request, int64_t band, int64_t row,
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

}  // namespace kvsim
