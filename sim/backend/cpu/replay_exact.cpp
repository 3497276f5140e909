#include "sim/backend/cpu/replay_exact.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "sim/backend/cpu/shift.hpp"

namespace kvsim {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// out += weight * row of values
void add_value(const Tensor& values, int64_t kv_head, int64_t entry, double weight,
               std::vector<float>& row, std::vector<double>& out) {
  values.read(kv_head, entry, entry + 1, row.data());
  for (size_t c = 0; c < out.size(); ++c) out[c] += weight * static_cast<double>(row[c]);
}

}  // namespace

ExactRow::ExactRow(const ReplayJob& job, int64_t head, int64_t step) : job_(job), head_(head) {
  const LayerTrace& layer = job.layer;
  const size_t d = static_cast<size_t>(job.d);
  std::vector<float> query(d), key(d);
  const int64_t query_row = job.first_query + step;
  layer.q.read(head, query_row, query_row + 1, query.data());
  logits_.resize(static_cast<size_t>(job.position(step) + 1));
  for (size_t i = 0; i < logits_.size(); ++i) {
    const int64_t entry = static_cast<int64_t>(i);
    layer.k.read(head / job.group, entry, entry + 1, key.data());
    double dot = 0;
    for (size_t j = 0; j < d; ++j)
      dot += static_cast<double>(query[j]) * static_cast<double>(key[j]);
    const double logit = layer.scale * dot;
    logits_[i] = layer.softcap > 0 ? layer.softcap * std::tanh(logit / layer.softcap) : logit;
  }
}

ExactRow::Result ExactRow::attend(std::span<const uint32_t> kept, bool output) const {
  const int64_t n = job_.n;
  const int64_t visible = static_cast<int64_t>(logits_.size());
  double prompt_maximum = -kInfinity;
  for (const uint32_t i : kept) prompt_maximum = std::max(prompt_maximum, logits_[i]);
  double maximum = prompt_maximum;
  for (size_t i = static_cast<size_t>(n); i < logits_.size(); ++i)
    maximum = std::max(maximum, logits_[i]);

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
  double denominator = sink_mass(job_.sink_logit(head_), maximum);
  std::vector<float> row(static_cast<size_t>(job_.dv));
  result.output.assign(static_cast<size_t>(job_.dv), 0.0);
  const auto add = [&](int64_t i) {
    const double e = std::exp(logits_[static_cast<size_t>(i)] - maximum);
    denominator += e;
    if (e > 0) add_value(job_.layer.v, kv_head, i, e, row, result.output);
  };
  for (const uint32_t i : kept) add(i);
  for (int64_t i = n; i < visible; ++i) add(i);
  for (double& x : result.output) x /= denominator;
  return result;
}

}  // namespace kvsim
