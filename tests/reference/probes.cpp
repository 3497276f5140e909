// Queries of a probe (policies.md 5.1, 5.2 and 5.4; trace-format.md 7).
#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "tests/reference/kinds.hpp"
#include "tests/reference/reference.hpp"
#include "tests/support/random_trace.hpp"

namespace kvsim::reference {
namespace {

/// KVzip: softmax over sinks before the stretch that is read again, the stretch, and its own part.
double reread(PartFacts& at, int h, size_t j, size_t c) {
  const int64_t token = at.query(j) - kProbeQuery, i = at.entry(c);
  const std::vector<ProbePart>& parts = at.c.info->probes.at(at.c.probe()).parts;
  const Settings& settings = at.c.settings;
  if (std::ranges::none_of(parts, [&](const ProbePart& part) { return part.reads.contains(i); }))
    return settings.is("unread", "first") ? INFINITY : 0;
  const Range reads = at.layer.part_of(token).reads;
  if (!reads.contains(i)) return 0;
  const Row& all = at.layer.logit(h, at.query(j));
  std::vector<bool> present(all.size());
  for (size_t x = 0; x < all.size(); ++x) {
    const auto entry = static_cast<int64_t>(x);
    present[x] = entry >= at.c.n() || reads.contains(entry) ||
                 entry < std::min(settings.count("sinks"), reads.begin);
  }
  const double a =
      reference::attention(at.layer.layer(), h, all, present).weight[static_cast<size_t>(i)];
  if (settings.is("reread_norm", "none")) return a;
  const double value = a * at.layer.value_norm(h, i, true, false);
  const ProbeLayer& probe = at.layer.probe();
  const auto own = [&](const std::vector<float>& norms) {
    return static_cast<double>(norms[static_cast<size_t>(token)]);
  };
  if (settings.is("reread_norm", "gradient")) return value * own(probe.output_gradient);
  return value / own(settings.is("reread_norm", "input") ? probe.input_norm : probe.residual_norm);
}

const References<QueriesReference> queries_of_probe{
    {"probe", {[](const PolicyCase& c, const Part&) { return probe_queries(c); }}}};
const References<IndicatorReference> of_probe{{"reread", {.element = reread}}};
const References<JoinReference> joins{
    {"none", {nullptr}},
    {"power-mean", {[](const Settings& s, double a, double b) {
       const double p = s.real("power");
       return std::pow(std::pow(std::max(a, 0.0), p) / 2 + std::pow(std::max(b, 0.0), p) / 2,
                       1 / p);
     }}},
    {"max", {[](const Settings&, double a, double b) { return std::max(a, b); }}},
};

}  // namespace

size_t PolicyCase::probe() const {
  for (size_t p = 0; p < info->probes.size(); ++p)
    if (settings.is("probe", info->probes[p].name)) return p;
  throw std::logic_error("no such probe");
}

std::vector<int64_t> probe_queries(const PolicyCase& c) {
  const ProbeInfo& probe = c.info->probes.at(c.probe());
  const int64_t all = probe.answer_begin > 0 ? probe.answer_begin : probe.tokens();
  const int64_t first = c.settings.count("probe_first");
  const int64_t tokens = first == 0 ? all : std::min(first, all);
  const int64_t asked = c.settings.count("probe_queries");
  const int64_t some = asked == 0 ? tokens : std::min(asked, tokens);
  std::vector<int64_t> queries;
  for (int64_t r = 1; r <= some; ++r)
    queries.push_back(kProbeQuery + (Rational(r * tokens) / Rational(some)).floor() - 1);
  return queries;
}

const ProbePart& LayerFacts::part_of(int64_t token) const {
  for (const ProbePart& part : c_.info->probes.at(c_.probe()).parts)
    if (part.tokens.contains(token)) return part;
  throw std::logic_error("no such token");
}

const ProbeLayer& LayerFacts::probe() const { return layer_.probes.at(c_.probe()); }

/// The prompt's entries, then those of the token's part up to itself.
Row LayerFacts::probe_logits(int h, int64_t token) const {
  const ProbeLayer& probe = layer_.probes.at(c_.probe());
  const int64_t begin = part_of(token).tokens.begin, n = c_.n();
  const auto kv_head = h / group_size();
  Row result;
  for (int64_t i = 0; i < n + token - begin + 1; ++i) {
    double dot = 0;
    for (int64_t x = 0; x < c_.info->head_dim; ++x) {
      const float key = i < n ? test::element(layer_.k, kv_head, i, x)
                              : test::element(probe.k, kv_head, begin + i - n, x);
      dot += static_cast<double>(test::element(probe.q, h, token, x)) * static_cast<double>(key);
    }
    const double logit = layer_.scale * dot;
    result.push_back(layer_.softcap > 0 ? layer_.softcap * std::tanh(logit / layer_.softcap)
                                        : logit);
  }
  return result;
}

Row LayerFacts::probe_output(int h, int64_t token) {
  const Row& weight = attention(h, kProbeQuery + token);
  const int64_t begin = part_of(token).tokens.begin, n = c_.n();
  Row z(static_cast<size_t>(layer_.value_dim()), 0.0);
  for (size_t x = 0; x < weight.size(); ++x)
    for (size_t k = 0; k < z.size(); ++k) {
      const auto i = static_cast<int64_t>(x), column = static_cast<int64_t>(k);
      const float v = i < n ? test::element(layer_.v, h / group_size(), i, column)
                            : test::element(layer_.probes.at(c_.probe()).v, h / group_size(),
                                            begin + i - n, column);
      z[k] += weight[x] * static_cast<double>(v);
    }
  return z;
}

}  // namespace kvsim::reference
