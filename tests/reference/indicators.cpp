// Indicators that have a row for every observing query (policies.md 5.2).
#include <cmath>

#include "tests/reference/kinds.hpp"
#include "tests/reference/reference.hpp"

namespace kvsim::reference {
namespace {

double attention_of(PartFacts& at, int h, size_t j, size_t c) {
  return at.visible(j, c) ? at.attention(h, j, c) : 0;
}

double importance(PartFacts& at, int h, size_t j, size_t c) {
  return at.visible(j, c) ? at.attention(h, j, c) * at.layer.value_norm(h, at.entry(c), true, true)
                          : 0;
}

double attention_value(PartFacts& at, int h, size_t j, size_t c) {
  return at.visible(j, c)
             ? at.attention(h, j, c) * at.layer.value_norm(h, at.entry(c), false, false)
             : 0;
}

double exp_logit(PartFacts& at, int h, size_t j, size_t c) {
  if (!at.visible(j, c)) return 0;
  return std::exp(at.layer.logit(h, at.query(j))[static_cast<size_t>(at.entry(c))] -
                  at.largest_logit(h));
}

double below_mean(PartFacts& at, int h, size_t j, size_t c) {
  if (!at.visible(j, c)) return 0;
  const int64_t sees = at.query(j) < kProbeQuery ? at.query(j) + 1
                                                 : std::ssize(at.layer.logit(h, at.query(j)));
  const int64_t seen = sees - at.part.range.begin;  // of its own segment
  return at.attention(h, j, c) < 1.0 / static_cast<double>(seen) ? -1 : 0;
}

/// importance-share: of the sum over all heads and candidates.
void share_of_layer(Rows& rows) {
  for (size_t j = 0; j < rows[0].size(); ++j) {
    double sum = 0;
    for (const auto& head : rows)
      for (const double x : head[j]) sum += x;
    for (auto& head : rows)
      for (double& x : head[j]) x = sum > 0 ? x / sum : 0;
  }
}

/// (z - v_i) W^h times the odds: what one head's output changes by.
Row change(PartFacts& at, int h, size_t j, size_t c, double odds) {
  Row x = minus(at.layer.projected_output(h, at.query(j)),
                at.layer.projected_value(h, at.entry(c)));
  for (double& y : x) y *= odds;
  return x;
}

double output_change(PartFacts& at, int h, size_t j, size_t c) {
  if (!at.visible(j, c)) return 0;
  const double odds = at.layer.odds(h, at.query(j), at.entry(c));
  if (std::isinf(odds)) return INFINITY;
  return odds * l2(change(at, h, j, c, 1));
}

/// Of all heads that share the entry.
double joint_change(PartFacts& at, int kv_head, size_t j, size_t c) {
  if (!at.visible(j, c)) return 0;
  const int g = at.layer.group_size();
  Row sum;
  for (int h = kv_head * g; h < (kv_head + 1) * g; ++h) {
    const double odds = at.layer.odds(h, at.query(j), at.entry(c));
    if (std::isinf(odds)) return INFINITY;
    const Row mine = change(at, h, j, c, odds);
    sum.resize(mine.size(), 0.0);
    for (size_t k = 0; k < mine.size(); ++k) sum[k] += mine[k];
  }
  return l2(sum);
}

/// output-change-mean: from the aggregated attention of one head.
void mean_change(PartFacts& at, int h, Row& a) {
  const LayerTrace& layer = at.layer.layer();
  Row mean(static_cast<size_t>(layer.value_dim()), 0.0);
  for (size_t c = 0; c < a.size(); ++c) {
    const Row v = value(layer, h, at.entry(c));
    for (size_t k = 0; k < v.size(); ++k) mean[k] += a[c] * v[k];
  }
  for (size_t c = 0; c < a.size(); ++c) {
    const Row v = value(layer, h, at.entry(c));
    // An aggregate of 1 or more leaves nothing that the rest could be measured against.
    a[c] = a[c] < 1 ? a[c] / (1 - a[c]) * l2(project(layer, h, minus(mean, v))) : INFINITY;
  }
}

/// Attention of the query at j, moved to n + j mod H, on the prompt and on its own piece; of a
/// probe's token t of a part, to n + t mod H.
double rehearsed(PartFacts& at, int h, size_t j, size_t c) {
  const int64_t query = at.query(j), n = at.c.n();
  const bool of_probe = query >= kProbeQuery;
  if (!of_probe && at.c.rescored() && !at.part.range.contains(query)) return 0;
  Row& known = at.rows_of_the_kind[{h, query}];
  if (known.empty()) {
    const int64_t first = of_probe
                              ? kProbeQuery + at.layer.part_of(query - kProbeQuery).tokens.begin
                              : 0;
    const int64_t number = query - first;
    const int64_t begin = number - number % at.c.settings.count("rehearsal_steps");
    known = at.layer.moved_logits(h, query, n + number - begin);
    known.resize(static_cast<size_t>(n));
    for (int64_t i = begin; i <= number; ++i)
      known.push_back(at.layer.logit(h, query)[static_cast<size_t>(of_probe ? n + i : i)]);
    known = reference::attention(at.layer.layer(), h, known).weight;
  }
  const double a = known[static_cast<size_t>(at.entry(c))];
  return at.c.settings.is("rehearsal_norm", "none")
             ? a
             : a * at.layer.value_norm(h, at.entry(c), true, false);
}

/// Attention of the query, where it stands, on the whole prompt.
double unmasked(PartFacts& at, int h, size_t j, size_t c) {
  const int64_t query = at.query(j);
  if (at.c.rescored() && !at.c.settings.is("queries", "future") && !at.part.range.contains(query))
    return 0;
  Row& known = at.rows_of_the_kind[{h, query}];
  if (known.empty()) {
    known = at.layer.moved_logits(h, query, query);
    known.resize(static_cast<size_t>(at.c.n()));
    known = reference::attention(at.layer.layer(), h, known).weight;
  }
  return known[static_cast<size_t>(at.entry(c))];
}

/// value-change-mean: from the aggregated attention of one head.
void value_change(PartFacts& at, int h, Row& a) {
  const LayerTrace& layer = at.layer.layer();
  double sum = 0;
  for (const double x : a) sum += x;
  Row mean(static_cast<size_t>(layer.value_dim()), 0.0);
  for (size_t c = 0; c < a.size(); ++c) {
    a[c] = sum > 0 ? a[c] / sum : 0;
    const Row v = value(layer, h, at.entry(c));
    for (size_t k = 0; k < v.size(); ++k) mean[k] += a[c] * v[k];
  }
  for (size_t c = 0; c < a.size(); ++c)
    a[c] = a[c] < 1 ? a[c] / (1 - a[c]) * l2(minus(mean, value(layer, h, at.entry(c)))) : INFINITY;
}

const References<IndicatorReference> of_rows{
    {"attention", {.element = attention_of}},
    {"importance", {.element = importance}},
    {"importance-share", {.element = importance, .finish_rows = share_of_layer}},
    {"attention-value", {.element = attention_value}},
    {"exp-logit", {.element = exp_logit}},
    {"below-mean", {.element = below_mean}},
    {"output-change", {.element = output_change}},
    {"output-change-joint", {.element = joint_change, .per_kv_head = true}},
    {"output-change-mean", {.element = attention_of, .finish_aggregated = mean_change}},
    {"rehearsal", {.element = rehearsed, .from_behind = true}},
    {"unmasked-attention", {.element = unmasked, .from_behind = true}},
    {"value-change-mean", {.element = attention_of, .finish_aggregated = value_change}},
};

}  // namespace
}  // namespace kvsim::reference
