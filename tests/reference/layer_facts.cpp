#include "tests/reference/layer_facts.hpp"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "tests/reference/reference.hpp"
#include "tests/support/random_trace.hpp"

namespace kvsim::reference {

const Row& LayerFacts::logit(int h, int64_t j) {
  Row& known = logits_[{h, j}];
  if (known.empty() && j >= kProbeQuery) return known = probe_logits(h, j - kProbeQuery);
  if (known.empty()) {
    const auto& stored = c_.info->query_position;
    const auto at = std::find(stored.begin(), stored.end(), j);
    if (at == stored.end()) throw std::logic_error("query not stored");
    known = reference::logits(layer_, h, at - stored.begin());
  }
  return known;
}

const Row& LayerFacts::attention(int h, int64_t j) {
  Row& known = attention_[{h, j}];
  if (known.empty()) known = reference::attention(layer_, h, logit(h, j)).weight;
  return known;
}

const Row& LayerFacts::projected_output(int h, int64_t j) {
  Row& known = projected_z_[{h, j}];
  if (known.empty())
    known = project(
        layer_, h,
        j >= kProbeQuery ? probe_output(h, j - kProbeQuery) : output(layer_, h, attention(h, j)));
  return known;
}

const Row& LayerFacts::projected_value(int h, int64_t i) {
  Row& known = projected_v_[{h, i}];
  if (known.empty()) known = project(layer_, h, value(layer_, h, i));
  return known;
}

double LayerFacts::value_norm(int h, int64_t i, bool projected, bool first) {
  const Row x = projected ? projected_value(h, i) : value(layer_, h, i);
  return first ? l1(x) : l2(x);
}

double LayerFacts::odds(int h, int64_t j, int64_t i) {
  const Row& l = logit(h, j);
  double others = layer_.attention_sink.empty()
                      ? 0
                      : std::exp(layer_.attention_sink[static_cast<size_t>(h)] -
                                 l[static_cast<size_t>(i)]);
  for (size_t x = 0; x < l.size(); ++x)
    if (static_cast<int64_t>(x) != i) others += std::exp(l[x] - l[static_cast<size_t>(i)]);
  return 1 / others;
}

Row LayerFacts::moved_logits(int h, int64_t query, int64_t to) const {
  const TraceInfo& info = *c_.info;
  const auto& stored = info.query_position;
  const bool of_probe = query >= kProbeQuery;
  const auto token = static_cast<size_t>(query - kProbeQuery);
  const int64_t position = of_probe ? info.probes[c_.probe()].position[token] : query;
  const int64_t row = of_probe ? query - kProbeQuery
                               : std::find(stored.begin(), stored.end(), position) - stored.begin();
  const Tensor& queries = of_probe ? layer_.probes[c_.probe()].q : layer_.q;
  const Rotation& rope = info.rotation(layer_.layer);
  const auto half = static_cast<int64_t>(rope.inv_freq.size());
  Row q(static_cast<size_t>(info.head_dim));
  for (int64_t x = 0; x < info.head_dim; ++x)
    q[static_cast<size_t>(x)] = static_cast<double>(test::element(queries, h, row, x));
  for (int64_t x = 0; x < half; ++x) {
    const double angle = static_cast<double>(to - position) * rope.inv_freq[static_cast<size_t>(x)];
    double& a = q[static_cast<size_t>(rope.first + (rope.interleaved ? 2 * x : x))];
    double& b = q[static_cast<size_t>(rope.first + (rope.interleaved ? 2 * x + 1 : x + half))];
    const double first = a * std::cos(angle) - b * std::sin(angle);
    b = a * std::sin(angle) + b * std::cos(angle);
    a = first;
  }
  Row result;
  for (int64_t i = 0; i < info.total_len; ++i) {
    double dot = 0;
    for (int64_t x = 0; x < info.head_dim; ++x)
      dot += q[static_cast<size_t>(x)] *
             static_cast<double>(test::element(layer_.k, h / info.group_size(), i, x));
    const double logit = layer_.scale * dot;
    result.push_back(layer_.softcap > 0 ? layer_.softcap * std::tanh(logit / layer_.softcap)
                                        : logit);
  }
  return result;
}

double PartFacts::largest_logit(int h) {
  if (largest.contains(h)) return largest[h];
  double most = -INFINITY;
  for (size_t j = 0; j < part.queries.size(); ++j)
    for (size_t x = 0; x < part.candidates.size(); ++x)
      if (visible(j, x))
        most = std::max(most, layer.logit(h, query(j))[static_cast<size_t>(entry(x))]);
  return largest[h] = most;
}

Row minus(Row a, const Row& b) {
  for (size_t k = 0; k < a.size(); ++k) a[k] -= b[k];
  return a;
}

}  // namespace kvsim::reference
