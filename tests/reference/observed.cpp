// Indicators of all observing queries at once (policies.md 5.2).

#include <algorithm>
#include <cmath>
#include <complex>
#include <map>
#include <numbers>
#include <numeric>

#include "sim/core/numbers.hpp"
#include "tests/reference/kinds.hpp"
#include "tests/reference/reference.hpp"
#include "tests/support/random_trace.hpp"

namespace kvsim::reference {
namespace {

using Complex = std::complex<double>;

/// What an indicator makes of one part of one layer.
struct Observed {
  const PolicyCase& c;
  const LayerTrace& layer;
  const Part& part;

  int heads() const { return c.info->num_query_heads; }
  int64_t size() const { return c.info->head_dim; }
  const Rotation& rope() const { return c.info->rotation(layer.layer); }
  size_t pairs() const { return rope().inv_freq.size(); }
  double frequency(size_t f) const { return rope().inv_freq[f]; }
  size_t first_of(size_t f) const {
    return static_cast<size_t>(rope().first) + (rope().interleaved ? 2 * f : f);
  }
  size_t second_of(size_t f) const {
    return static_cast<size_t>(rope().first) + (rope().interleaved ? 2 * f + 1 : f + pairs());
  }

  /// Dimensions that no rotation touches.
  std::vector<size_t> still() const {
    std::vector<size_t> rest;
    for (size_t x = 0; x < static_cast<size_t>(size()); ++x) rest.push_back(x);
    for (size_t f = 0; f < pairs(); ++f) {
      std::erase(rest, first_of(f));
      std::erase(rest, second_of(f));
    }
    return rest;
  }
  /// x with its pairs turned by `positions`.
  Row turned(const Row& x, double positions) const {
    Row y = x;
    for (size_t f = 0; f < pairs(); ++f) {
      const Complex turn = std::polar(1.0, positions * frequency(f));
      const Complex z = turn * Complex(x[first_of(f)], x[second_of(f)]);
      y[first_of(f)] = z.real();
      y[second_of(f)] = z.imag();
    }
    return y;
  }
  Row query(int h, int64_t position) const {
    const auto& stored = c.info->query_position;
    const int64_t row = std::find(stored.begin(), stored.end(), position) - stored.begin();
    Row q;
    for (int64_t x = 0; x < size(); ++x) q.push_back(test::element(layer.q, h, row, x));
    return q;
  }
  Row key(int kv_head, int64_t i) const {
    Row k;
    for (int64_t x = 0; x < size(); ++x) k.push_back(test::element(layer.k, kv_head, i, x));
    return k;
  }
  int kv_head(int h) const { return h / c.info->group_size(); }
};

double product_of(const Row& a, const Row& b) {
  double sum = 0;
  for (size_t x = 0; x < a.size(); ++x) sum += a[x] * b[x];
  return sum;
}

/// E exp(scale q k) over later positions n..n+F-1 of a normal q, turned by the mean rotation,
/// normalised over the candidates that are no sinks.
Row expected_attention(const Observed& o, int h) {
  const int64_t sinks = o.c.settings.count("sinks"), steps = o.c.settings.count("expected_steps");
  std::vector<int64_t> from;
  for (const int64_t j : o.part.queries)
    if (j >= sinks) from.push_back(j);
  if (from.empty()) from = o.part.queries;
  std::vector<Row> q;
  Row mean(static_cast<size_t>(o.size()), 0.0);
  for (const int64_t j : from) q.push_back(o.turned(o.query(h, j), static_cast<double>(-j)));
  for (const Row& one : q)
    for (size_t x = 0; x < mean.size(); ++x) mean[x] += one[x] / static_cast<double>(q.size());
  const auto turn = [&](const Row& x) {  // the mean of its rotations
    Row y(x.size(), 0.0);
    for (int64_t s = 0; s < steps; ++s) {
      const Row one = o.turned(x, static_cast<double>(o.c.n() + s));
      for (size_t a = 0; a < y.size(); ++a) y[a] += one[a] / static_cast<double>(steps);
    }
    return y;
  };
  const Row centre = turn(mean);
  std::vector<Row> centred;
  for (Row one : q) {
    for (size_t x = 0; x < one.size(); ++x) one[x] -= mean[x];
    centred.push_back(turn(one));
  }
  Row weight(o.part.candidates.size(), 0.0);
  double sum = 0, most = -kInfinity;
  Row logit;
  for (const int64_t i : o.part.candidates) {
    const Row k = o.key(o.kv_head(h), i);
    double l = o.layer.scale * product_of(k, centre);
    if (o.c.settings.flag("expected_variance"))
      for (const Row& one : centred)
        l += o.layer.scale * o.layer.scale * product_of(k, one) * product_of(k, one) / 2 /
             static_cast<double>(q.size());
    logit.push_back(l);
    if (i >= sinks) most = std::max(most, l);
  }
  for (size_t x = 0; x < logit.size(); ++x)
    if (o.part.candidates[x] >= sinks) sum += weight[x] = std::exp(logit[x] - most);
  for (double& w : weight) w = sum > 0 ? w / sum : 0;
  return weight;
}

/// sum_f |E q_f||k_f| cos(w_f (n + d - i) + phase) averaged over d = 1, 2, 4, ..., and
/// sum_f (E|q_f| - |E q_f|)|k_f|, both of vectors before their rotation; standardised.
Row trigonometric(const Observed& o, int h) {
  const auto count = static_cast<double>(o.part.queries.size());
  std::vector<Complex> centre(o.pairs());
  Row length(o.pairs(), 0.0), still(static_cast<size_t>(o.size()), 0.0);
  for (const int64_t j : o.part.queries) {
    const Row q = o.turned(o.query(h, j), static_cast<double>(-j));
    for (size_t f = 0; f < o.pairs(); ++f) {
      const Complex z(q[o.first_of(f)], q[o.second_of(f)]);
      centre[f] += z / count;
      length[f] += std::abs(z) / count;
    }
    for (const size_t x : o.still()) still[x] += q[x] / count;
  }
  Row score;
  for (const int64_t i : o.part.candidates) {
    const Row k = o.turned(o.key(o.kv_head(h), i), static_cast<double>(-i));
    double sum = 0, offsets = 0;
    for (int64_t d = 1; d <= o.c.settings.count("trigonometric_reach"); d *= 2) ++offsets;
    for (size_t f = 0; f < o.pairs(); ++f) {
      const Complex z(k[o.first_of(f)], k[o.second_of(f)]);
      const double phase = std::arg(centre[f] * std::conj(z));
      for (int64_t d = 1; d <= o.c.settings.count("trigonometric_reach"); d *= 2)
        sum += std::abs(centre[f]) * std::abs(z) / offsets *
               std::cos(o.frequency(f) * static_cast<double>(o.c.n() + d - i) + phase);
      sum += (length[f] - std::abs(centre[f])) * std::abs(z);
    }
    for (const size_t x : o.still()) sum += still[x] * k[x];
    score.push_back(sum);
  }
  double mean = 0, squares = 0;
  for (const double s : score) mean += s / static_cast<double>(score.size());
  for (const double s : score)
    squares += (s - mean) * (s - mean) / static_cast<double>(score.size());
  for (double& s : score) s = (s - mean) / std::max(std::sqrt(squares), 1e-6);
  return score;
}

/// b of A b = y, by elimination; A is symmetric and positive definite.
Row solved(std::vector<Row> a, Row y) {
  const size_t n = y.size();
  for (size_t p = 0; p < n; ++p)
    for (size_t r = p + 1; r < n; ++r) {
      const double factor = a[r][p] / a[p][p];
      for (size_t x = p; x < n; ++x) a[r][x] -= factor * a[p][x];
      y[r] -= factor * y[p];
    }
  for (size_t p = n; p-- > 0;) {
    for (size_t x = p + 1; x < n; ++x) y[p] -= a[p][x] * y[x];
    y[p] /= a[p][p];
  }
  return y;
}

/// x (X^T X + 0.01)^-1 x^T of centred keys before their rotation, in random directions or their
/// own.
Row leverage(const Observed& o, int kv_head, const std::vector<int64_t>& entries) {
  const auto count = static_cast<double>(entries.size());
  const int64_t sketch = o.c.settings.count("compactor_sketch");
  std::vector<Row> x;
  Row mean(static_cast<size_t>(o.size()), 0.0);
  for (const int64_t i : entries) {
    Row k = o.turned(o.key(kv_head, i), static_cast<double>(-i));
    for (size_t f = 0; f < o.pairs(); ++f) {
      k[o.first_of(f)] /= o.rope().attention_factor;
      k[o.second_of(f)] /= o.rope().attention_factor;
    }
    x.push_back(k);
  }
  for (const Row& k : x)
    for (size_t a = 0; a < mean.size(); ++a) mean[a] += k[a] / count;
  const auto draw = [&](int64_t at) {
    return uniform(o.c.seed + 2, static_cast<uint64_t>(o.layer.layer),
                   static_cast<uint64_t>(kv_head), static_cast<uint64_t>(at));
  };
  for (Row& k : x) {
    for (size_t a = 0; a < mean.size(); ++a) k[a] -= mean[a];
    if (sketch == 0) continue;
    Row y(static_cast<size_t>(sketch), 0.0);
    for (int64_t a = 0; a < o.size(); ++a)
      for (int64_t b = 0; b < sketch; ++b) {
        const int64_t at = a * sketch + b;
        y[static_cast<size_t>(b)] += k[static_cast<size_t>(a)] *
                                     std::sqrt(-2 * std::log(1 - draw(2 * at))) *
                                     std::cos(2 * std::numbers::pi * draw(2 * at + 1)) /
                                     std::sqrt(static_cast<double>(sketch));
      }
    k = y;
  }
  std::vector<Row> gram(x[0].size(), Row(x[0].size(), 0.0));
  for (size_t a = 0; a < gram.size(); ++a) {
    for (size_t b = 0; b < gram.size(); ++b)
      for (const Row& k : x) gram[a][b] += k[a] * k[b];
    gram[a][a] += 0.01;
  }
  Row score;
  for (const Row& k : x) score.push_back(std::max(product_of(k, solved(gram, k)), 0.0));
  return score;
}

/// Per entry: sum over the chunk's queries of the softmax of q.k over its keys, zeros filled in,
/// mean over heads; times |v|, pooled over three.
Row chunk_attention(const Observed& o, int kv_head, const std::vector<int64_t>& entries) {
  const int64_t size = o.c.settings.count("compactor_chunk");
  const int g = o.c.info->group_size();
  Row score(entries.size(), 0.0);
  for (size_t begin = 0; begin < entries.size(); begin += static_cast<size_t>(size)) {
    const size_t end = std::min(entries.size(), begin + static_cast<size_t>(size));
    const double zeros = static_cast<double>(size) - static_cast<double>(end - begin);
    for (size_t i = begin; i < end; ++i) score[i] += zeros / static_cast<double>(size);
    for (int h = kv_head * g; h < (kv_head + 1) * g; ++h)
      for (size_t j = begin; j < end; ++j) {
        const auto& observing = o.part.queries;
        if (std::find(observing.begin(), observing.end(), entries[j]) == observing.end()) continue;
        const Row q = o.query(h, entries[j]);
        for (size_t i = begin; i < end; ++i) {
          const double own = product_of(q, o.key(kv_head, entries[i]));
          double sum = zeros * std::exp(-own);
          for (size_t other = begin; other < end; ++other)
            sum += std::exp(product_of(q, o.key(kv_head, entries[other])) - own);
          score[i] += 1 / sum / g;
        }
      }
  }
  for (size_t i = 0; i < entries.size(); ++i)
    score[i] *= l2(value(o.layer, kv_head * g, entries[i]));
  Row pooled;
  for (size_t i = 0; i < entries.size(); ++i)
    pooled.push_back(
        ((i > 0 ? score[i - 1] : 0) + score[i] + (i + 1 < entries.size() ? score[i + 1] : 0)) / 3);
  return pooled;
}

void standardize(std::vector<Row>& rows) {
  double mean = 0, squares = 0, count = 0;
  for (const Row& row : rows) count += static_cast<double>(row.size());
  for (const Row& row : rows)
    for (const double x : row) mean += x / count;
  for (const Row& row : rows)
    for (const double x : row) squares += (x - mean) * (x - mean);
  const double deviation = count > 1 ? std::sqrt(squares / (count - 1)) : 0;
  for (Row& row : rows)
    for (double& x : row) x = (x - mean) / std::max(deviation, 1e-6);
}

/// Blended, standardised over the layer; what is not scored has the largest.
std::vector<Row> compactor(const Observed& o) {
  const auto& all = o.part.candidates;
  const int64_t sinks = std::min<int64_t>(o.c.settings.count("sinks"), std::ssize(all));
  const bool fraction = o.c.settings.text("recent").find('.') != std::string::npos;
  const int64_t recent = std::min<int64_t>(fraction ? 0 : o.c.settings.count("recent"),
                                           std::ssize(all) - sinks);
  const std::vector<int64_t> entries(all.begin() + sinks, all.end() - recent);
  const int kv_heads = o.c.info->num_kv_heads;
  std::vector<Row> scores(static_cast<size_t>(kv_heads), Row(all.size(), 0.0));
  if (entries.empty()) return scores;
  std::vector<Row> leverages, attentions;
  for (int h = 0; h < kv_heads; ++h) {
    leverages.push_back(leverage(o, h, entries));
    attentions.push_back(chunk_attention(o, h, entries));
  }
  standardize(leverages);
  standardize(attentions);
  const double blend = o.c.settings.is_none("compactor_blend")
                           ? 1 - o.c.ratio().value()
                           : o.c.settings.real("compactor_blend");
  double top = -kInfinity;
  for (size_t h = 0; h < scores.size(); ++h)
    for (size_t i = 0; i < entries.size(); ++i)
      top = std::max(top, attentions[h][i] += blend * leverages[h][i]);
  for (size_t h = 0; h < scores.size(); ++h) {
    scores[h].assign(all.size(), top);
    std::copy(attentions[h].begin(), attentions[h].end(), scores[h].begin() + sinks);
  }
  return scores;
}

/// What one query head puts out after W_O at one query, and what is left of it.
struct Left {
  Row weight, full, output;  // A over the prompt; z W; the sum of A v W over what is left
  double mass = 1;           // of the attention
};

Row projected_value(const LayerTrace& layer, int h, int kv_head, int64_t i) {
  Row v;
  for (int64_t x = 0; x < layer.value_dim(); ++x)
    v.push_back(test::element(layer.v, kv_head, i, x));
  return project(layer, h, v);
}

/// |sum over heads of (output left / mass left) - full|^2 without the entry i (-1: none), mean over
/// the queries; `left` is [query][head of the group], `values` [head of the group][entry]. Infinite
/// where an entry leaves a query with nothing.
double moved(const std::vector<std::vector<Left>>& left,
             const std::vector<std::vector<Row>>& values, int64_t i) {
  double sum = 0;
  for (const std::vector<Left>& query : left) {
    Row change(query.front().full.size(), 0.0);
    for (size_t h = 0; h < query.size(); ++h) {
      const double gone = i < 0 ? 0 : query[h].weight[static_cast<size_t>(i)];
      if (i >= 0 && query[h].mass - gone <= 1e-6) return kInfinity;
      const double mass = std::max(query[h].mass - gone, 1e-6);
      for (size_t x = 0; x < change.size(); ++x) {
        const double of_entry = i < 0 ? 0 : gone * values[h][static_cast<size_t>(i)][x];
        // Not (output - entry) / mass - full, which would lose all digits to the division.
        change[x] += (query[h].output[x] - of_entry - mass * query[h].full[x]) / mass;
      }
    }
    for (const double x : change) sum += x * x;
  }
  return sum / static_cast<double>(left.size());
}

bool seen_by_any(const std::vector<std::vector<Left>>& left, int64_t i) {
  return std::any_of(left.begin(), left.end(), [&](const std::vector<Left>& query) {
    return std::any_of(query.begin(), query.end(),
                       [&](const Left& one) { return one.weight[static_cast<size_t>(i)] > 0; });
  });
}

Row eliminated(const PolicyCase& c, const LayerTrace& layer, const Part& part, int kv_head) {
  const int g = c.info->group_size();
  std::vector<std::vector<Row>> values(static_cast<size_t>(g));
  for (int h = 0; h < g; ++h)
    for (int64_t i = 0; i < c.n(); ++i)
      values[static_cast<size_t>(h)].push_back(projected_value(layer, kv_head * g + h, kv_head, i));
  std::vector<std::vector<Left>> left;
  for (const int64_t j : part.queries) {
    const auto& stored = c.info->query_position;
    const int64_t row = std::find(stored.begin(), stored.end(), j) - stored.begin();
    left.emplace_back();
    for (int h = kv_head * g; h < (kv_head + 1) * g; ++h) {
      Left one;
      one.weight = attention(layer, h, logits(layer, h, row)).weight;
      one.full = one.output = project(layer, h, output(layer, h, one.weight));
      one.weight.resize(std::max(one.weight.size(), static_cast<size_t>(c.n())), 0.0);
      left.back().push_back(one);
    }
  }
  std::vector<size_t> rest(part.candidates.size());
  std::iota(rest.begin(), rest.end(), size_t{0});
  Row score(rest.size(), 0.0);
  double before = 0;
  // What the output moves by grows by so much without each of `some`.
  const auto costs = [&](const std::vector<size_t>& some) {
    const double now = moved(left, values, -1);
    std::map<size_t, double> added;
    for (const size_t at : some)
      added[at] = seen_by_any(left, part.candidates[at])
                      ? moved(left, values, part.candidates[at]) - now
                      : 0;
    return added;
  };
  while (!rest.empty()) {
    std::map<size_t, double> added = costs(rest);
    const auto cheaper = [&](size_t a, size_t b) {
      return added[a] != added[b] ? added[a] < added[b] : a < b;
    };
    std::sort(rest.begin(), rest.end(), cheaper);
    const size_t count = std::min(rest.size(), std::max<size_t>(8, rest.size() / 16));
    const double bound = count < rest.size() ? added[rest[count]] : kInfinity;
    std::vector<size_t> batch(rest.begin(), rest.begin() + static_cast<int64_t>(count));
    for (bool first = true; !batch.empty(); first = false) {
      added = costs(batch);
      const auto next = std::min_element(batch.begin(), batch.end(), cheaper);
      const size_t at = *next;
      if (!first && added[at] > bound) break;
      batch.erase(next);
      std::erase(rest, at);
      before = std::max(std::sqrt(std::max(0.0, added[at])), before * (1 + 1e-6));
      score[at] = before;
      const auto i = static_cast<size_t>(part.candidates[at]);
      for (std::vector<Left>& query : left)
        for (size_t h = 0; h < query.size(); ++h) {
          query[h].mass -= query[h].weight[i];
          for (size_t x = 0; x < query[h].output.size(); ++x)
            query[h].output[x] -= query[h].weight[i] * values[h][i][x];
        }
    }
  }
  return score;
}

/// One row per query head; zeros where nothing of the part observes.
IndicatorReference of_heads(Row (*score)(const Observed&, int), double unit = 0) {
  return {.observed =
              [score](const PolicyCase& c, const LayerTrace& layer, const Part& part) {
    std::vector<Row> scores;
    for (int h = 0; h < c.info->num_query_heads; ++h)
      scores.push_back(part.queries.empty() ? Row(part.candidates.size(), 0.0)
                                            : score({c, layer, part}, h));
    return scores;
          },
          .unit = unit};
}

const References<IndicatorReference> at_once{
    {"expected-attention", of_heads(expected_attention)},
    {"trigonometric", of_heads(trigonometric, 1)},
    {"compactor",
     {.observed =
          [](const PolicyCase& c, const LayerTrace& layer, const Part& part) {
  return part.queries.empty()
             ? std::vector<Row>(static_cast<size_t>(c.owners()), Row(part.candidates.size(), 0.0))
             : compactor({c, layer, part});
      },
      .per_kv_head = true,
      .unit = 1}},
    {"elimination",
     {.observed =
          [](const PolicyCase& c, const LayerTrace& layer, const Part& part) {
  std::vector<Row> scores;
  for (int h = 0; h < c.owners(); ++h)
    scores.push_back(part.queries.empty() ? Row(part.candidates.size(), 0.0)
                                          : eliminated(c, layer, part, h));
  return scores;
      },
      .per_kv_head = true}},
    };

}  // namespace
}  // namespace kvsim::reference
