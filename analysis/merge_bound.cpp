#include "analysis/merge_bound.hpp"

#include <Eigen/Core>
#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include "analysis/summary.hpp"
#include "sim/core/log_sum.hpp"
#include "sim/core/parallel.hpp"
#include "sim/core/slot_change.hpp"

namespace kvsim {
namespace {

constexpr double kSlack = 1e-5;  // of gamma: rounding of float32 keys and values

/// (1 - sqrt(1 - e^2)) / e without its difference of near numbers; 0 at 0.
double circle_term(double e) { return e / (1 + std::sqrt(1 - e * e)); }

double paper_bound(const BoundSample& sample) {
  const double e = sample.mismatch;
  return 2 * e * (1 + e) * sample.spread / ((1 - e) * (1 - e));
}

double scale_bound(const BoundSample& sample) {
  const double root_q = std::pow(1 - sample.mismatch, -(1 + std::fabs(sample.scale)) / 2);
  const double mass = std::isinf(root_q) ? 1 : (root_q - 1) / (root_q + 1);
  return sample.spread * (circle_term(sample.mismatch) + mass);
}

double bias_bound(const BoundSample& sample) {
  return 2 * sample.spread * circle_term(sample.mismatch);
}

/// Query position `position` of heads first..first+heads-1: their mean, [d]; and the mean of their
/// sinks' logits, -inf when the layer has none.
struct MeanQuery {
  Eigen::VectorXd q;
  double sink = -std::numeric_limits<double>::infinity();
};
MeanQuery mean_query(const LayerTrace& layer, int first, int heads, int64_t row) {
  MeanQuery mean{Eigen::VectorXd::Zero(layer.q.dim(2)), -std::numeric_limits<double>::infinity()};
  std::vector<float> one(static_cast<size_t>(layer.q.dim(2)));
  double sinks = 0;
  for (int h = first; h < first + heads; ++h) {
    layer.q.read(h, row, row + 1, one.data());
    mean.q += Eigen::Map<const Eigen::VectorXf>(one.data(), mean.q.size()).cast<double>() / heads;
    if (!layer.attention_sink.empty())
      sinks += static_cast<double>(layer.attention_sink[static_cast<size_t>(h)]) / heads;
  }
  if (!layer.attention_sink.empty()) mean.sink = sinks;
  return mean;
}

/// Full-cache attention of one mean query, with which pairs are compared.
class AtQuery {
 public:
  AtQuery(const LayerTrace& layer, int kv_head, const MeanQuery& query, int64_t visible)
      : layer_(layer), query_(query.q) {
    Table<float> keys(visible, layer.k.dim(2)), values(visible, layer.value_dim());
    layer.k.read(kv_head, 0, visible, keys.data());
    layer.v.read(kv_head, 0, visible, values.data());
    using Rows = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
    logits_ = Eigen::Map<const Rows>(keys.data(), visible, keys.columns()).cast<double>() * query_ *
              layer.scale;
    values_ = Eigen::Map<const Rows>(values.data(), visible, values.columns())
                  .cast<double>()
                  .transpose();  // [dv][visible]
    const double largest = std::max(query.sink, logits_.maxCoeff());
    const Eigen::VectorXd weight = (logits_.array() - largest).exp();
    const double sum = weight.sum() + std::exp(query.sink - largest);
    log_sum_ = largest + std::log(sum);
    output_ = values_ * weight / sum;
  }

  BoundSample sample(const PairMerge& pair) const {
    const double e = logits_(pair.from), c = logits_(pair.into);
    const double together = log_add(e, c);
    const Eigen::VectorXd mean = std::exp(e - together) * values_.col(pair.from) +
                                 std::exp(c - together) * values_.col(pair.into);
    const Eigen::Map<const Eigen::VectorXf> key(pair.key.data(), query_.size());
    const double slot = layer_.scale * key.cast<double>().dot(query_) + pair.log_weight;
    BoundSample result;
    result.perturbation = slot_change<float, double>(std::min(1.0, std::exp(together - log_sum_)),
                                                     slot - together,
                                                     {mean.data(), pair.value.size()}, pair.value,
                                                     {output_.data(), pair.value.size()})
                              .whole;
    for (const uint32_t x : {pair.from, pair.into})
      result.spread = std::max(
          result.spread,
          std::sqrt((values_.colwise() - values_.col(x)).colwise().squaredNorm().maxCoeff()));
    result.mismatch = std::max(std::fabs(std::expm1(pair.log_score_from - e)),
                               std::fabs(std::expm1(pair.log_score_into - c)));
    result.scale = pair.scale;
    return result;
  }

 private:
  const LayerTrace& layer_;
  Eigen::VectorXd query_, logits_, output_;
  Eigen::MatrixXd values_;
  double log_sum_ = 0;
};

/// Pairs that are looked at with the same query.
struct Look {
  int first_head = 0;
  int heads = 1;
  int64_t position = 0;
  std::vector<std::pair<size_t, size_t>> wanted;  ///< pair, delay
  std::vector<BoundSample> found;
};

std::vector<Look> looks_of(const TraceInfo& info, std::span<const PairMerge> pairs) {
  std::map<std::tuple<int, int, int64_t>, Look> looks;
  for (size_t p = 0; p < pairs.size(); ++p) {
    const PairMerge& pair = pairs[p];
    for (size_t d = 0; d < bound_delays().size(); ++d) {
      const int64_t position = pair.merged_at + bound_delays()[d];
      if (position > pair.last) continue;
      if (!std::ranges::binary_search(info.query_position, position)) continue;
      Look& look = looks[{pair.first_head, pair.heads, position}];
      look.first_head = pair.first_head;
      look.heads = pair.heads;
      look.position = position;
      look.wanted.emplace_back(p, d);
    }
  }
  std::vector<Look> all;
  for (auto& [key, look] : looks) all.push_back(std::move(look));
  return all;
}

}  // namespace

const std::vector<int64_t>& bound_delays() {
  static const std::vector<int64_t> delays = {0, 1, 8, 64, 512};
  return delays;
}

std::vector<std::vector<BoundSample>> bound_samples(LayerWork& work,
                                                    std::span<const PairMerge> pairs) {
  const TraceInfo& info = work.info();
  std::vector<Look> looks = looks_of(info, pairs);
  parallel_for(static_cast<int64_t>(looks.size()), [&](int64_t x) {
    Look& look = looks[static_cast<size_t>(x)];
    const int64_t row = std::ranges::lower_bound(info.query_position, look.position) -
                        info.query_position.begin();
    const AtQuery at(work.trace(), look.first_head / work.group_size(),
                     mean_query(work.trace(), look.first_head, look.heads, row), look.position + 1);
    for (const auto& [pair, delay] : look.wanted) look.found.push_back(at.sample(pairs[pair]));
  });
  std::vector<std::vector<BoundSample>> samples(bound_delays().size());
  for (const Look& look : looks)
    for (size_t k = 0; k < look.wanted.size(); ++k)
      samples[look.wanted[k].second].push_back(look.found[k]);
  return samples;
}

const std::vector<MergeBound>& merge_bounds() {
  static const std::vector<MergeBound> bounds = {
      {"paper", paper_bound}, {"scale", scale_bound}, {"bias", bias_bound}};
  return bounds;
}

BoundSummary summarize(const MergeBound& bound, std::span<const BoundSample> samples) {
  BoundSummary summary;
  summary.pairs = static_cast<int64_t>(samples.size());
  if (samples.empty()) return summary;
  std::vector<double> values, ratios, perturbations;
  double violated = 0;
  for (const BoundSample& sample : samples) {
    perturbations.push_back(sample.perturbation);
    if (!(sample.mismatch < 1)) continue;
    values.push_back(bound.value(sample));
    violated += sample.perturbation > values.back() + kSlack * sample.spread;
    if (values.back() > 0) ratios.push_back(sample.perturbation / values.back());
  }
  const auto applicable = static_cast<double>(values.size());
  summary.applicable = applicable / static_cast<double>(samples.size());
  summary.perturbation = percentile(perturbations, 50);
  if (values.empty()) return summary;
  summary.violated = violated / applicable;
  summary.ratio = percentile(ratios, 50);
  summary.bound = percentile(values, 50);
  return summary;
}

}  // namespace kvsim
