#include "sim/replay/merge_watcher.hpp"

#include <Eigen/Core>
#include <algorithm>
#include <cmath>
#include <limits>

#include "sim/core/log_sum.hpp"
#include "sim/replay/full_rest.hpp"

namespace kvsim {
namespace {

using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using View = Eigen::Map<const Matrix>;

}  // namespace

MergeWatcher::MergeWatcher(const LayerWork& work, const std::vector<SlotCache>& owners,
                           const LayerSlots& slots, const Table<float>& importance,
                           const Table<double>& log_sum_exp, const std::vector<float>& z,
                           MergeTally& tally)
    : work_(work), slots_(slots), importance_(importance), full_(log_sum_exp), z_(z), tally_(tally),
      heads_per_owner_(work.query_heads() / static_cast<int>(owners.size())),
      heads_(static_cast<size_t>(work.query_heads())) {
  for (const SlotCache& cache : owners) {
    Owner& owner = owners_.emplace_back();
    for (int64_t s = 0; s < cache.size(); ++s) {
      if (cache.members(s).empty()) continue;
      owner.slot.push_back(s);
      for (const uint32_t entry : cache.members(s)) {
        owner.member.push_back(entry);
        owner.own.push_back(entry == cache.position(s));
      }
      owner.end.push_back(owner.member.size());
    }
  }
}

SlotWatcher MergeWatcher::watch() {
  return [this](int head, int64_t step, std::span<const float> slots, double log_sum_exp) {
    see(head, step, slots, log_sum_exp);
  };
}

Table<float> MergeWatcher::member_logits(int head) const {
  const Owner& owner = owners_[owner_of(head)];
  const LayerTrace& layer = work_.trace();
  const int64_t first = work_.info().first_step();
  const int64_t steps = work_.info().steps();
  const auto members = static_cast<int64_t>(owner.member.size());
  const int kv = head / work_.group_size();
  Table<float> keys(members, layer.k.dim(2));
  for (int64_t m = 0; m < members; ++m) {
    const int64_t entry = owner.member[static_cast<size_t>(m)];
    layer.k.read(kv, entry, entry + 1, keys.row(m).data());
  }
  Table<float> queries(steps, layer.q.dim(2));
  layer.q.read(head, first, first + steps, queries.data());
  Table<float> logits(steps, members);
  Eigen::Map<Matrix>(logits.data(), steps, members).noalias() =
      View(queries.data(), steps, queries.columns()) *
      View(keys.data(), members, keys.columns()).transpose();
  for (float& logit : logits.values()) {
    double x = static_cast<double>(logit) * layer.scale;
    if (layer.softcap != 0) x = layer.softcap * std::tanh(x / layer.softcap);
    logit = static_cast<float>(x);
  }
  return logits;
}

Table<float> MergeWatcher::member_values(int head) const {
  const Owner& owner = owners_[owner_of(head)];
  Table<float> values(static_cast<int64_t>(owner.member.size()), work_.value_dim());
  for (int64_t m = 0; m < values.rows(); ++m) {
    const int64_t entry = owner.member[static_cast<size_t>(m)];
    work_.trace().v.read(head / work_.group_size(), entry, entry + 1, values.row(m).data());
  }
  return values;
}

/// What merged slot number `slot` of the head's owner changes of its output.
void MergeWatcher::see_change(int head, int64_t step, size_t slot, double attention,
                              double defect) {
  const size_t o = owner_of(head);
  const Owner& owner = owners_[o];
  const Head& own = heads_[static_cast<size_t>(head)];
  const auto logits = own.logits.row(step);
  const size_t begin = slot == 0 ? 0 : owner.end[slot - 1];
  double largest = -std::numeric_limits<double>::infinity();
  for (size_t m = begin; m < owner.end[slot]; ++m)
    largest = std::max(largest, static_cast<double>(logits[m]));
  std::vector<double> mean(static_cast<size_t>(work_.value_dim()), 0.0);
  double total = 0;
  for (size_t m = begin; m < owner.end[slot]; ++m) {
    const double weight = std::exp(static_cast<double>(logits[m]) - largest);
    const auto value = own.values.row(static_cast<int64_t>(m));
    for (size_t c = 0; c < mean.size(); ++c) mean[c] += weight * static_cast<double>(value[c]);
    total += weight;
  }
  for (double& x : mean) x /= total;
  const std::span<const float> value = slots_.owners[o].v.row(owner.slot[slot]);
  if (attention > kNearlyAll) {
    const auto members = std::span(owner.member).subspan(begin, owner.end[slot] - begin);
    const FullRest rest = full_rest(work_.trace(), head, step, members);
    const double log_odds = largest + std::log(total) - rest.log_mass;
    tally_.add_change(head, step,
                      slot_change_beside<float>(log_odds, defect, mean, value, rest.mean));
    return;
  }
  const std::span<const float> z(
      z_.data() + (head * work_.info().steps() + step) * work_.value_dim(), mean.size());
  tally_.add_change(head, step, slot_change<float, float>(attention, defect, mean, value, z));
}

void MergeWatcher::see(int head, int64_t step, std::span<const float> slots, double log_sum_exp) {
  const Owner& owner = owners_[owner_of(head)];
  Head& own = heads_[static_cast<size_t>(head)];
  if (step == 0) own.logits = member_logits(head);
  if (step == 0 && tally_.wants_changes()) own.values = member_values(head);
  const auto row = own.logits.row(step);
  const double full = full_(head, step);
  size_t m = 0;
  for (size_t x = 0; x < owner.slot.size(); ++x) {
    double together = -std::numeric_limits<double>::infinity();
    for (; m < owner.end[x]; ++m) {
      const auto logit = static_cast<double>(row[m]);
      together = log_add(together, logit);
      if (owner.own[m]) continue;
      const double attention = std::exp(logit - full);
      const double weight = static_cast<double>(importance_(head, owner.member[m]));
      tally_.add_member(head, step, attention, attention * weight);
    }
    const auto slot = static_cast<double>(slots[static_cast<size_t>(owner.slot[x])]);
    tally_.add_slot(head, step, std::exp(together - full), std::exp(slot - log_sum_exp),
                    slot - together);
    if (tally_.wants_changes())
      see_change(head, step, x, std::exp(together - full), slot - together);
  }
  if (step + 1 == own.logits.rows()) own = {};
}

}  // namespace kvsim
