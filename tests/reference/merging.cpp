#include "tests/reference/merging.hpp"

#include <algorithm>
#include <cmath>

#include "tests/reference/reference.hpp"
#include "tests/support/random_trace.hpp"

namespace kvsim::reference {
namespace {

using kvsim::test::element;

double dot(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (size_t c = 0; c < a.size(); ++c) sum += a[c] * b[c];
  return sum;
}

double cosine(const std::vector<double>& a, const std::vector<double>& b) {
  const double lengths = l2(a) * l2(b);
  return lengths > 0 ? dot(a, b) / lengths : 0;
}

std::vector<double> mixed(double a, const std::vector<double>& x, double b,
                          const std::vector<double>& y) {
  std::vector<double> result(x.size());
  for (size_t c = 0; c < x.size(); ++c) result[c] = a * x[c] + b * y[c];
  return result;
}

double length_between(const std::vector<double>& a, const std::vector<double>& b) {
  return l2(mixed(1, a, -1, b));
}

int64_t row_of(const TraceInfo& info, int64_t position) {
  return std::ranges::lower_bound(info.query_position, position) - info.query_position.begin();
}

}  // namespace

double StreamingMerge::Slot::log_score(size_t line) const {
  return std::log(sum[line] / weight[line]);
}

size_t StreamingMerge::lines() const {
  return rule_.merge == "keepkv-bias" ? static_cast<size_t>(heads()) : 1;
}

StreamingMerge::Slot StreamingMerge::entry(int owner, int64_t i) const {
  Slot slot;
  slot.position = i;
  for (int64_t c = 0; c < layer_.k.dim(2); ++c)
    slot.k.push_back(static_cast<double>(element(layer_.k, owner, i, c)));
  slot.v = value(layer_, owner * heads(), i);
  slot.members = {i};
  slot.bias.assign(static_cast<size_t>(heads()), 0.0);
  slot.sum.assign(lines(), 0.0);
  slot.weight.assign(lines(), 0.0);
  return slot;
}

std::vector<double> StreamingMerge::query(int head, int64_t t) const {
  std::vector<double> q;
  for (int64_t c = 0; c < layer_.q.dim(2); ++c)
    q.push_back(static_cast<double>(element(layer_.q, head, row_of(*layer_.info, t), c)));
  return q;
}

std::vector<double> StreamingMerge::line_query(int owner, size_t line, int64_t t) const {
  if (lines() > 1 || heads() == 1) return query(owner * heads() + static_cast<int>(line), t);
  std::vector<double> mean = query(owner * heads(), t);
  for (int x = 1; x < heads(); ++x) mean = mixed(1, mean, 1, query(owner * heads() + x, t));
  for (double& c : mean) c /= heads();
  return mean;
}

double StreamingMerge::logit(const std::vector<double>& q, const Slot& slot) const {
  const double x = layer_.scale * dot(q, slot.k);
  return layer_.softcap != 0 ? layer_.softcap * std::tanh(x / layer_.softcap) : x;
}

double StreamingMerge::log_weight(const Slot& slot, int x) const {
  if (rule_.merge == "keepkv") return std::log(static_cast<double>(slot.members.size()));
  return rule_.merge == "keepkv-bias" ? slot.bias[static_cast<size_t>(x)] : 0;
}

/// Attention of a query on the slots alone, mean over the owner's heads.
std::vector<double> StreamingMerge::slot_attention(int owner, int64_t t) const {
  const auto& slots = owners_[static_cast<size_t>(owner)];
  std::vector<double> mean(slots.size(), 0.0);
  for (int x = 0; x < heads(); ++x) {
    const int head = owner * heads() + x;
    const auto q = query(head, t);
    std::vector<double> weight;
    double sum = layer_.attention_sink.empty()
                     ? 0
                     : std::exp(
                           static_cast<double>(layer_.attention_sink[static_cast<size_t>(head)]));
    for (const Slot& slot : slots) {
      weight.push_back(std::exp(logit(q, slot) + log_weight(slot, x)));
      sum += weight.back();
    }
    for (size_t s = 0; s < weight.size(); ++s) mean[s] += weight[s] / sum / heads();
  }
  return mean;
}

void StreamingMerge::see(int owner, int64_t t) {
  for (size_t line = 0; line < lines(); ++line) {
    const auto q = line_query(owner, line, t);
    for (Slot& slot : owners_[static_cast<size_t>(owner)]) {
      if (slot.position > t) continue;
      slot.sum[line] = rule_.decay * slot.sum[line] + (1 - rule_.decay) * std::exp(logit(q, slot));
      slot.weight[line] = rule_.decay * slot.weight[line] + (1 - rule_.decay);
    }
  }
}

void StreamingMerge::compress(int64_t n) {
  owners_.assign(static_cast<size_t>(layer_.info->num_kv_heads), {});
  for (int owner = 0; owner < layer_.info->num_kv_heads; ++owner) {
    auto& slots = owners_[static_cast<size_t>(owner)];
    for (int64_t i = 0; i < n; ++i) slots.push_back(entry(owner, i));
    if (estimates())
      for (int64_t j = std::max<int64_t>(0, n - 1 - rule_.window); j < n; ++j) see(owner, j);
    std::vector<size_t> leaving;
    for (int64_t i = rule_.sinks; i < n - (rule_.budget - rule_.sinks); ++i)
      leaving.push_back(static_cast<size_t>(i));
    evict(owner, leaving, n - 1);
  }
}

void StreamingMerge::evict(int owner, std::vector<size_t> leaving, int64_t now) {
  auto& slots = owners_[static_cast<size_t>(owner)];
  const auto leaves = [&](size_t s) { return std::ranges::find(leaving, s) != leaving.end(); };
  std::vector<double> attention;
  if (rule_.merge == "cam-expected" && !leaving.empty()) attention = slot_attention(owner, now);
  std::vector<double> totals(lines(), 0.0);
  if (estimates())
    for (size_t line = 0; line < lines(); ++line)
      for (const Slot& slot : slots)
        totals[line] += std::exp(slot.bias[line] + slot.log_score(line));
  const std::vector<Slot> before = slots;
  const size_t first_pair = pairs_.size();
  for (const size_t e : leaving) {
    size_t target = slots.size();
    double best = -2;
    for (size_t s = 0; s < slots.size(); ++s) {
      if (leaves(s) || cosine(before[s].k, before[e].k) < best) continue;
      best = cosine(before[s].k, before[e].k);
      target = s;
    }
    if (rule_.merge == "cam-expected") {
      std::vector<size_t> later;
      double mean = 0;
      for (size_t s = e + 1; s < slots.size(); ++s)
        if (!leaves(s)) later.push_back(s);
      for (const size_t s : later) mean += attention[s] / static_cast<double>(later.size());
      const double share = mean > 0 ? std::clamp(attention[e] / mean, 0.0, 1.0) : 0;
      later.resize(std::min(later.size(), static_cast<size_t>(rule_.cam_targets)));
      for (const size_t s : later)
        slots[s].v = mixed(1, slots[s].v, share / static_cast<double>(later.size()), slots[e].v);
    } else if (rule_.merge != "drop" && best > rule_.threshold) {
      merge(owner, slots[target], slots[e], totals, now);
    }
  }
  for (size_t p = first_pair; p < pairs_.size();) {  // a third entry may have joined since
    const auto slot = std::ranges::find(slots, pairs_[p].into, &Slot::position);
    if (slot->members.size() == 2)
      ++p;
    else
      pairs_.erase(pairs_.begin() + static_cast<int64_t>(p));
  }
  for (size_t x = leaving.size(); x-- > 0;)
    slots.erase(slots.begin() + static_cast<int64_t>(leaving[x]));
}

void StreamingMerge::merge(int owner, Slot& into, const Slot& from,
                           const std::vector<double>& totals, int64_t now) {
  const auto p_e = static_cast<double>(from.members.size());
  const auto p_c = static_cast<double>(into.members.size());
  MadePair pair{owner, from.position, into.position, now, 0, 0, 1, 0, {}, {}};
  double share = p_e / (p_e + p_c), scale = 1;
  if (rule_.merge == "keepkv") {
    const double s_e = std::exp(from.log_score(0)), s_c = std::exp(into.log_score(0));
    share = p_e * s_e / (p_e * s_e + p_c * s_c);
    const double level = std::log((p_e * s_e + p_c * s_c) / (p_e + p_c));
    const double mean = share * std::log(s_e) + (1 - share) * std::log(s_c);
    if (std::fabs(mean) >= 1e-6) scale = level / mean;
    pair.log_score_from = std::log(s_e);
    pair.log_score_into = std::log(s_c);
    into.sum[0] = std::exp(level) * into.weight[0];
  } else if (rule_.merge == "keepkv-bias") {
    double top = 0, bottom = 0;
    for (size_t x = 0; x < lines(); ++x) {
      const double r_e = std::exp(from.bias[x] + from.log_score(x)) / totals[x];
      const double r_c = std::exp(into.bias[x] + into.log_score(x)) / totals[x];
      top += (r_e + r_c) * r_e;
      bottom += (r_e + r_c) * (r_e + r_c);
    }
    share = top / bottom;
    pair.log_score_from = from.log_score(0);
    pair.log_score_into = into.log_score(0);
    for (size_t x = 0; x < lines(); ++x) {
      const double level = share * from.log_score(x) + (1 - share) * into.log_score(x);
      into.bias[x] = std::log(std::exp(from.bias[x] + from.log_score(x)) +
                              std::exp(into.bias[x] + into.log_score(x))) -
                     level;
      into.sum[x] = std::exp(level) * into.weight[x];
    }
  }
  into.k = mixed(scale * (1 - share), into.k, scale * share, from.k);
  into.v = mixed(1 - share, into.v, share, from.v);
  into.members.insert(into.members.end(), from.members.begin(), from.members.end());
  pair.scale = scale;
  stretch_ = std::max(stretch_, std::fabs(scale));
  pair.log_weight = log_weight(into, 0);
  pair.key = into.k;
  pair.value = into.v;
  if (estimates()) pairs_.push_back(pair);
}

std::vector<MergedStep> StreamingMerge::look(int64_t n, int64_t t) const {
  std::vector<MergedStep> steps;
  for (int head = 0; head < layer_.info->num_query_heads; ++head)
    steps.push_back(compare(head, n, t));
  return steps;
}

std::vector<MergedStep> StreamingMerge::decode(int64_t t) {
  for (int owner = 0; owner < layer_.info->num_kv_heads; ++owner)
    owners_[static_cast<size_t>(owner)].push_back(entry(owner, t));
  std::vector<MergedStep> steps = look(t + 1, t);
  for (int owner = 0; owner < layer_.info->num_kv_heads; ++owner) {
    if (estimates()) see(owner, t);
    auto& slots = owners_[static_cast<size_t>(owner)];
    if (static_cast<int64_t>(slots.size()) <= rule_.budget) continue;
    evict(owner, {static_cast<size_t>(rule_.sinks)}, t);
  }
  return steps;
}

MergedStep StreamingMerge::compare(int head, int64_t n, int64_t t) const {
  const int owner = head / heads(), x = head % heads();
  const auto q = query(head, t);
  const auto logits_of = logits(layer_, head, row_of(*layer_.info, t));
  const double sink = layer_.attention_sink.empty()
                          ? 0
                          : std::exp(static_cast<double>(
                                layer_.attention_sink[static_cast<size_t>(head)]));
  const Attention full = attention(layer_, head, logits_of);
  const std::vector<double> z = output(layer_, head, full.weight);
  std::vector<Slot> present = owners_[static_cast<size_t>(owner)];
  for (int64_t i = n; i <= t; ++i) present.push_back(entry(owner, i));
  double sum = sink;
  std::vector<double> weight, z_hat(z.size(), 0.0);
  for (const Slot& slot : present) {
    weight.push_back(std::exp(logit(q, slot) + log_weight(slot, x)));
    sum += weight.back();
  }
  for (size_t s = 0; s < present.size(); ++s)
    z_hat = mixed(1, z_hat, weight[s] / sum, present[s].v);
  MergedStep step;
  step.change = mixed(1, z_hat, -1, z);
  for (size_t s = 0; s < present.size(); ++s) {
    const auto& members = present[s].members;
    if (members.size() < 2) continue;
    double mass = 0, rest = sink;
    std::vector<double> v_m(z.size(), 0.0), v_rest(z.size(), 0.0);
    for (int64_t i = 0; i <= t; ++i) {
      const bool member = std::ranges::find(members, i) != members.end();
      const double w = std::exp(logits_of[static_cast<size_t>(i)]);
      (member ? mass : rest) += w;
      auto& mean = member ? v_m : v_rest;
      mean = mixed(1, mean, w, value(layer_, head, i));
    }
    v_m = mixed(1 / mass, v_m, 0, v_m);
    v_rest = mixed(1 / rest, v_rest, 0, v_rest);
    const double a = mass / (mass + rest), a_slot = weight[s] / (weight[s] + rest);
    step.sag += mass / (mass + rest) - weight[s] / sum;
    step.defect += std::log(weight[s] / mass);
    step.value_part += a_slot * length_between(present[s].v, v_m);
    step.mass_part += std::fabs(a_slot - a) * length_between(v_m, v_rest);
    ++step.slots;
  }
  return step;
}

}  // namespace kvsim::reference
