// The end of a tile: sums over bands, fractions, outputs.
#include <algorithm>
#include <cmath>

#include "sim/backend/cpu/replay_exact.hpp"
#include "sim/backend/cpu/replay_tile.hpp"

namespace kvsim {
namespace {

/// Scores below 2e-38 of the shift were taken as 0. With 10^5 such keys a sum above this is still
/// right to 2e-8; below it the row is done again in float64.
constexpr double kVanishing = 1e-25;

}  // namespace

void ReplayTile::finish_full(ReplayBlock& block) {
  std::vector<float> inverse(static_cast<size_t>(rows_));
  sink_.assign(static_cast<size_t>(rows_), 0.0);
  for (int64_t r = 0; r < rows_; ++r) {
    const size_t at = static_cast<size_t>(r);
    const int64_t head = first_head_ + head_of(r), step = r % steps_;
    sink_[at] = std::exp(job_.sink_logit(head) - static_cast<double>(shift_[at]));
    total_[at] = mass(kPrompt)[r] + mass(kLater)[r] + sink_[at];
    inverse[at] = static_cast<float>(1.0 / total_[at]);
    block.prompt_attention(head, step) = mass(kPrompt)[r] / total_[at];
    block.later_attention(head, step) = mass(kLater)[r] / total_[at];
    const bool weighted = !importances_.empty();
    block.prompt_importance(head, step) = weighted ? importance(kPrompt)[r] / total_[at] : 0.0;
    block.later_importance(head, step) = weighted ? importance(kLater)[r] / total_[at] : 0.0;
  }
  EmitTask task{};
  task.previous = accumulator(kLater);
  task.current = accumulator(kPrompt);
  task.ld = job_.ldv;
  task.rows = rows_;
  task.columns = job_.dv;
  task.inverse = inverse.data();
  task.out = block.z.data() + first_head_ * steps_ * job_.dv;
  job_.kernels.emit(task);
}

void ReplayTile::finish_plan(const PlanWalk& plan, const ReplayPlan& request, ReplayBlock& block) {
  // Bands become sets: running sums, in place.
  for (int64_t band = 1; band < plan.bands; ++band) {
    const int64_t set = kShared + plan.first_set + band;
    for (int64_t r = 0; r < rows_; ++r) {
      mass(set)[r] += mass(set - 1)[r];
      if (!importances_.empty()) importance(set)[r] += importance(set - 1)[r];
    }
  }
  finish_masses(plan, request, block);
  if (!plan.masses_only) finish_outputs(plan, request, block);
  for (int64_t band = 0; band < plan.bands; ++band)
    for (int64_t r = 0; r < rows_; ++r)
      if (mass(kShared + plan.first_set + band)[r] + mass(kLater)[r] < kVanishing)
        redo(plan, request, band, r, block);
}

void ReplayTile::finish_masses(const PlanWalk& plan, const ReplayPlan& request,
                               ReplayBlock& block) {
  for (int64_t band = 0; band < plan.bands; ++band) {
    const int64_t set = plan.first_set + band;
    Table<double>& attention = block.kept_attention[static_cast<size_t>(set)];
    Table<double>& weighted = block.kept_importance[static_cast<size_t>(set)];
    for (int64_t r = 0; r < rows_; ++r) {
      const int64_t head = first_head_ + head_of(r), step = r % steps_;
      const double total = total_[static_cast<size_t>(r)];
      const double all = block.prompt_attention(head, step);
      const double all_weighted = block.prompt_importance(head, step);
      const bool everything =
          chain(plan, request, head_of(r)).end[static_cast<size_t>(band)] == job_.n;
      // A part is never larger than the whole, also in the last bit.
      attention(head, step) =
          everything ? all : std::min(all, mass(kShared + set)[r] / total);
      weighted(head, step) =
          everything || importances_.empty()
              ? all_weighted
              : std::min(all_weighted, importance(kShared + set)[r] / total);
    }
  }
}

void ReplayTile::finish_outputs(const PlanWalk& plan, const ReplayPlan& request,
                                ReplayBlock& block) {
  std::vector<float> inverse(static_cast<size_t>(steps_));
  for (int64_t head = 0; head < heads_; ++head) {
    const float* previous = accumulator(kLater) + accumulator_row(false, head) * job_.ldv;
    const int64_t own_row = accumulator_row(plan.per_query_head, head);
    for (int64_t band = 0; band < plan.bands; ++band) {
      const int64_t set = plan.first_set + band;
      for (int64_t s = 0; s < steps_; ++s) {
        const int64_t r = head * steps_ + s;
        const double kept =
            mass(kShared + set)[r] + mass(kLater)[r] + sink_[static_cast<size_t>(r)];
        inverse[static_cast<size_t>(s)] = static_cast<float>(kept > 0 ? 1.0 / kept : 0.0);
      }
      const int64_t out = (first_head_ + head) * steps_ * job_.dv;
      EmitTask task{};
      task.previous = previous;
      task.current = used(plan.slot(band), plan.per_query_head ? head : 0)
                         ? accumulator(plan.slot(band)) + own_row * job_.ldv
                         : nullptr;
      task.ld = job_.ldv;
      task.rows = steps_;
      task.columns = job_.dv;
      task.inverse = inverse.data();
      task.z = block.z.data() + out;
      task.out = block.delta[static_cast<size_t>(set)] + out;
      job_.kernels.emit(task);
      if (task.current != nullptr) previous = task.current;
      // Nothing was dropped: the order of the sums must not show.
      if (chain(plan, request, head).end[static_cast<size_t>(band)] == job_.n)
        std::fill_n(task.out, steps_ * job_.dv, 0.0f);
    }
  }
}

void ReplayTile::redo(const PlanWalk& plan, const ReplayPlan& request, int64_t band, int64_t row,
                      ReplayBlock& block) const {
  const KeptChain& kept = chain(plan, request, head_of(row));
  const int64_t end = kept.end[static_cast<size_t>(band)];
  if (end == job_.n) return;
  const int64_t head = first_head_ + head_of(row), step = row % steps_;
  const ExactRow exact(job_, head, first_step_ + step);
  const ExactRow::Result result =
      exact.attend({kept.order.data(), static_cast<size_t>(end)}, !plan.masses_only);
  const size_t set = static_cast<size_t>(plan.first_set + band);
  const double shift = static_cast<double>(shift_[static_cast<size_t>(row)]);
  const double fraction =
      std::exp(result.log_mass - shift) / total_[static_cast<size_t>(row)];
  block.kept_attention[set](head, step) = fraction;
  block.kept_importance[set](head, step) = fraction * result.importance;
  if (plan.masses_only) return;
  const int64_t out = (head * steps_ + step) * job_.dv;
  for (int64_t c = 0; c < job_.dv; ++c) {
    const double z = static_cast<double>(block.z[static_cast<size_t>(out + c)]);
    block.delta[set][out + c] =
        static_cast<float>(result.output[static_cast<size_t>(c)] - z);
  }
}

}  // namespace kvsim
