#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "tests/reference/policy_reference.hpp"
#include "tests/reference/policy_smoothing.hpp"
#include "tests/reference/reference.hpp"
#include "tests/support/random_trace.hpp"

namespace kvsim::reference {
namespace {

/// Everything about one layer that the indicators are made of.
class LayerFacts {
 public:
  LayerFacts(const PolicyCase& c, const LayerTrace& layer) : c_(c), layer_(layer) {}

  int heads() const { return c_.info->num_query_heads; }
  int group_size() const { return c_.info->group_size(); }
  const LayerTrace& layer() const { return layer_; }

  /// l_{h,j,.}, [N]; -inf where invisible.
  const Row& logit(int h, int64_t j) {
    Row& known = logits_[{h, j}];
    if (known.empty()) {
      const auto& stored = c_.info->query_position;
      const auto at = std::find(stored.begin(), stored.end(), j);
      if (at == stored.end()) throw std::logic_error("query not stored");
      known = reference::logits(layer_, h, at - stored.begin());
    }
    return known;
  }
  const Row& attention(int h, int64_t j) {  // A_{h,j,.}
    Row& known = attention_[{h, j}];
    if (known.empty()) known = reference::attention(layer_, h, logit(h, j)).weight;
    return known;
  }
  const Row& projected_output(int h, int64_t j) {  // z_j^h W^h
    Row& known = projected_z_[{h, j}];
    if (known.empty()) known = project(layer_, h, output(layer_, h, attention(h, j)));
    return known;
  }
  const Row& projected_value(int h, int64_t i) {  // v_i W^h
    Row& known = projected_v_[{h, i}];
    if (known.empty()) known = project(layer_, h, value(layer_, h, i));
    return known;
  }
  double value_norm(int h, int64_t i, bool projected, bool first) {
    const Row x = projected ? projected_value(h, i) : value(layer_, h, i);
    return first ? l1(x) : l2(x);
  }
  /// A/(1-A) = weight of i over the weight of everything else that is visible, the sink included.
  double odds(int h, int64_t j, int64_t i) {
    const Row& l = logit(h, j);
    double others = layer_.attention_sink.empty()
                        ? 0
                        : std::exp(layer_.attention_sink[static_cast<size_t>(h)] -
                                   l[static_cast<size_t>(i)]);
    for (size_t x = 0; x < l.size(); ++x)
      if (static_cast<int64_t>(x) != i) others += std::exp(l[x] - l[static_cast<size_t>(i)]);
    return 1 / others;  // +inf when nothing else is visible
  }

 private:
  const PolicyCase& c_;
  const LayerTrace& layer_;
  std::map<std::pair<int, int64_t>, Row> logits_, attention_, projected_z_, projected_v_;
};

Row minus(Row a, const Row& b) {
  for (size_t k = 0; k < a.size(); ++k) a[k] -= b[k];
  return a;
}
void add_to(Row& a, const Row& b) {
  if (a.empty()) a.assign(b.size(), 0.0);
  for (size_t k = 0; k < a.size(); ++k) a[k] += b[k];
}

/// Logits [N] of the query at `position` when it stands at `to` and sees every key.
Row moved_logits(const TraceInfo& info, const LayerTrace& layer, int h, int64_t position,
                 int64_t to) {
  const auto& stored = info.query_position;
  const int64_t row = std::find(stored.begin(), stored.end(), position) - stored.begin();
  const auto half = static_cast<int64_t>(info.rope_inv_freq.size());
  Row q(static_cast<size_t>(info.head_dim));
  for (int64_t x = 0; x < info.head_dim; ++x)
    q[static_cast<size_t>(x)] = static_cast<double>(test::element(layer.q, h, row, x));
  for (int64_t x = 0; x < half; ++x) {
    const double angle = static_cast<double>(to - position) *
                         info.rope_inv_freq[static_cast<size_t>(x)];
    double& a = q[static_cast<size_t>(info.rope_interleaved ? 2 * x : x)];
    double& b = q[static_cast<size_t>(info.rope_interleaved ? 2 * x + 1 : x + half)];
    const double first = a * std::cos(angle) - b * std::sin(angle);
    b = a * std::sin(angle) + b * std::cos(angle);
    a = first;
  }
  Row result;
  for (int64_t i = 0; i < info.total_len; ++i) {
    double dot = 0;
    for (int64_t x = 0; x < info.head_dim; ++x)
      dot += q[static_cast<size_t>(x)] *
             static_cast<double>(test::element(layer.k, h / info.group_size(), i, x));
    const double logit = layer.scale * dot;
    result.push_back(layer.softcap > 0 ? layer.softcap * std::tanh(logit / layer.softcap) : logit);
  }
  return result;
}

/// X[a][j][c] of one part: a over query heads (KV heads for group rows), j over J, c over C.
using Rows = std::vector<std::vector<Row>>;

class PartScorer {
 public:
  PartScorer(const PolicyCase& c, LayerFacts& facts, const Part& part)
      : c_(c), facts_(facts), part_(part), name_(c.settings.text("indicator")) {}

  /// Grouped scores of the part: [owner][c].
  std::vector<Row> scores();
  /// sqrt(max(0, mean of squares - square of mean)) of the grouped rows, over queries that see i.
  std::vector<Row> deviations();

  bool visible(size_t j, size_t c) const {
    const int64_t query = part_.queries[j], entry = part_.candidates[c];
    if (entry > query) return false;
    // Pairs across segments do not count.
    return !c_.rescored() || c_.settings.is("queries", "future") || part_.range.contains(query);
  }

 private:
  size_t queries() const { return part_.queries.size(); }
  size_t columns() const { return part_.candidates.size(); }
  double element(int h, size_t j, size_t c);
  const Row& rehearsed(int h, int64_t query);
  double largest_logit(int h);
  double joint(int kv_head, size_t j, size_t c);
  Rows indicator();
  void aggregate(Rows& rows, std::vector<Rational>& drift);
  Row aggregate_head(const std::vector<Row>& rows) const;
  void group(Rows& rows) const;
  void finish_mean_change(int h, Row& a);
  double importance(int h, size_t j, size_t c) {
    const int64_t i = part_.candidates[c];
    return facts_.attention(h, part_.queries[j])[static_cast<size_t>(i)] *
           facts_.value_norm(h, i, true, true);
  }
  Rational drift_of(const std::vector<Row>& rows, int head) const;

  const PolicyCase& c_;
  LayerFacts& facts_;
  const Part& part_;
  std::string name_;
  std::map<int, double> largest_;
  std::map<std::pair<int, int64_t>, Row> rehearsed_;
};

/// Attention of the query at j, moved to n + j mod H, on the prompt and on its own piece.
const Row& PartScorer::rehearsed(int h, int64_t query) {
  Row& known = rehearsed_[{h, query}];
  if (!known.empty()) return known;
  const int64_t n = c_.n(), begin = query - query % c_.settings.count("rehearsal_steps");
  known = moved_logits(*c_.info, facts_.layer(), h, query, n + query - begin);
  known.resize(static_cast<size_t>(n));
  for (int64_t i = begin; i <= query; ++i)
    known.push_back(facts_.logit(h, query)[static_cast<size_t>(i)]);
  return known = reference::attention(facts_.layer(), h, known).weight;
}

double PartScorer::element(int h, size_t j, size_t c) {
  if (name_ == "rehearsal") {
    const int64_t query = part_.queries[j];
    if (c_.rescored() && !part_.range.contains(query)) return 0;
    return rehearsed(h, query)[static_cast<size_t>(part_.candidates[c])];
  }
  if (!visible(j, c)) return 0;
  const int64_t query = part_.queries[j], i = part_.candidates[c];
  const double a = facts_.attention(h, query)[static_cast<size_t>(i)];
  if (name_ == "attention" || name_ == "output-change-mean") return a;
  if (name_ == "below-mean") {
    const int64_t seen = query + 1 - part_.range.begin;  // of its own segment
    return a < 1.0 / static_cast<double>(seen) ? -1 : 0;
  }
  if (name_ == "importance" || name_ == "importance-share") return importance(h, j, c);
  if (name_ == "attention-value") return a * facts_.value_norm(h, i, false, false);
  if (name_ == "exp-logit")
    return std::exp(facts_.logit(h, query)[static_cast<size_t>(i)] - largest_logit(h));
  if (name_ == "output-change") {
    const double odds = facts_.odds(h, query, i);
    if (std::isinf(odds)) return kInfinity;
    return odds * l2(minus(facts_.projected_output(h, query), facts_.projected_value(h, i)));
  }
  throw std::logic_error("indicator " + name_);
}

double PartScorer::largest_logit(int h) {
  if (largest_.contains(h)) return largest_[h];
  double largest = -kInfinity;
  for (size_t j = 0; j < queries(); ++j)
    for (size_t c = 0; c < columns(); ++c)
      if (visible(j, c))
        largest = std::max(
            largest, facts_.logit(h, part_.queries[j])[static_cast<size_t>(part_.candidates[c])]);
  return largest_[h] = largest;
}

double PartScorer::joint(int kv_head, size_t j, size_t c) {
  if (!visible(j, c)) return 0;
  const int64_t query = part_.queries[j], i = part_.candidates[c];
  Row sum;
  for (int h = kv_head * facts_.group_size(); h < (kv_head + 1) * facts_.group_size(); ++h) {
    const double odds = facts_.odds(h, query, i);
    if (std::isinf(odds)) return kInfinity;
    Row change = minus(facts_.projected_output(h, query), facts_.projected_value(h, i));
    for (double& x : change) x *= odds;
    add_to(sum, change);
  }
  return l2(sum);
}

Rows PartScorer::indicator() {
  Rows rows;
  const bool joint_rows = name_ == "output-change-joint";
  const int count = joint_rows ? c_.info->num_kv_heads : facts_.heads();
  for (int a = 0; a < count; ++a) {
    rows.emplace_back();
    for (size_t j = 0; j < queries(); ++j) {
      Row row;
      for (size_t c = 0; c < columns(); ++c)
        row.push_back(joint_rows ? joint(a, j, c) : element(a, j, c));
      rows.back().push_back(std::move(row));
    }
  }
  if (name_ != "importance-share") return rows;
  for (size_t j = 0; j < queries(); ++j) {
    double sum = 0;
    for (const auto& head : rows)
      for (const double x : head[j]) sum += x;
    for (auto& head : rows)
      for (double& x : head[j]) x = sum > 0 ? x / sum : 0;
  }
  return rows;
}

Row PartScorer::aggregate_head(const std::vector<Row>& rows) const {
  const std::string kind = c_.settings.text("aggregate");
  const size_t count = rows.size();
  const double m = static_cast<double>(count);
  Row result(columns(), 0.0);
  for (size_t c = 0; c < columns(); ++c) {
    const auto x = [&](size_t k) { return rows[k][c]; };
    double sum = 0, seen = 0;
    for (size_t k = 0; k < count; ++k) sum += x(k), seen += visible(k, c) ? 1 : 0;
    double& out = result[c];
    if (kind == "mean")
      out = sum / m;
    else if (kind == "mean-visible")
      out = seen > 0 ? sum / seen : 0;
    else if (kind == "sum")
      out = sum;
    else if (kind == "last" || kind == "each")
      out = x(count - 1);
    else if (kind == "single")  // the newest when J has no such row
      out = x(std::min(count - 1, static_cast<size_t>(c_.settings.count("single_row"))));
    else if (kind == "max") {
      out = x(0);
      for (size_t k = 1; k < count; ++k) out = std::max(out, x(k));
    } else if (kind == "power-mean") {
      const auto p = static_cast<double>(c_.settings.count("power"));
      for (size_t k = 0; k < count; ++k) out += std::pow(std::max(x(k), 0.0), p) / m;
      out = std::pow(out, 1 / p);
    } else if (kind == "ema" || kind == "ema-inverse") {
      const double alpha = c_.settings.real("ema_alpha");
      const auto nth = [&](size_t k) { return x(kind == "ema" ? k : count - 1 - k); };
      out = nth(0);
      // What has weight 0 does not count, even where it is infinite.
      for (size_t k = 1; k < count; ++k) out = alpha * nth(k) + (alpha < 1 ? (1 - alpha) * out : 0);
    } else if (kind == "linear") {
      const double newest = c_.settings.real("linear_newest");
      for (size_t k = 0; k < count; ++k)
        out += x(k) * (count == 1 ? newest : 1 + (newest - 1) * static_cast<double>(k) / (m - 1)) /
               m;
    } else if (kind == "mean-variance") {
      double squares = 0;
      for (size_t k = 0; k < count; ++k) squares += (x(k) - sum / m) * (x(k) - sum / m);
      const double variance = count == 1 ? 0 : squares / (m - 1);
      out = sum / m + c_.settings.real("variance_weight") * variance;
    } else {
      throw std::logic_error("aggregate " + kind);
    }
  }
  return result;
}

/// output-change-mean: from the aggregated attention of one head.
void PartScorer::finish_mean_change(int h, Row& a) {
  Row mean(static_cast<size_t>(facts_.layer().value_dim()), 0.0);
  for (size_t c = 0; c < columns(); ++c) {
    const Row v = value(facts_.layer(), h, part_.candidates[c]);
    for (size_t k = 0; k < v.size(); ++k) mean[k] += a[c] * v[k];
  }
  for (size_t c = 0; c < columns(); ++c) {
    const Row v = value(facts_.layer(), h, part_.candidates[c]);
    // An aggregate of 1 or more leaves nothing that the rest could be measured against.
    a[c] = a[c] < 1 ? a[c] / (1 - a[c]) * l2(project(facts_.layer(), h, minus(mean, v)))
                    : kInfinity;
  }
}

/// Delta of one head-axis entry from the rows that enter `aggregate` (aws) or the attention rows
/// over all keys that each query sees (aws-code).
Rational PartScorer::drift_of(const std::vector<Row>& rows, int head) const {
  const bool code = c_.settings.is("smooth", "aws-code");
  const int64_t free = std::max<int64_t>(c_.entries() - c_.window(), 0);
  std::vector<Row> followed = rows;
  for (size_t j = 0; code && j < followed.size(); ++j) {
    followed[j] = facts_.attention(head, part_.queries[j]);
    followed[j].resize(static_cast<size_t>(std::min(part_.queries[j] + 1, c_.n())));
  }
  return drift(followed, free);
}

void PartScorer::aggregate(Rows& rows, std::vector<Rational>& drifts) {
  for (size_t a = 0; a < rows.size(); ++a) {
    if (c_.settings.text("smooth").starts_with("aws"))
      drifts.push_back(drift_of(rows[a], static_cast<int>(a)));
    Row one = aggregate_head(rows[a]);
    if (name_ == "output-change-mean") finish_mean_change(static_cast<int>(a), one);
    rows[a] = {one};
  }
}

void PartScorer::group(Rows& rows) const {
  const std::string kind = c_.settings.text("group");
  if (kind == "none" || name_ == "output-change-joint") return;
  const size_t size = kind == "layer-mean" ? rows.size() : static_cast<size_t>(facts_.group_size());
  Rows grouped;
  for (size_t begin = 0; begin < rows.size(); begin += size) {
    std::vector<Row> one = rows[begin];
    for (size_t j = 0; j < one.size(); ++j)
      for (size_t c = 0; c < one[j].size(); ++c) {
        double& x = one[j][c];
        for (size_t h = begin + 1; h < begin + size; ++h)
          x = kind == "max" ? std::max(x, rows[h][j][c]) : x + rows[h][j][c];
        if (kind != "max" && kind != "sum") x /= static_cast<double>(size);
      }
    grouped.push_back(std::move(one));
  }
  if (kind == "layer-mean") grouped.resize(static_cast<size_t>(c_.owners()), grouped[0]);
  rows = std::move(grouped);
}

std::vector<Row> PartScorer::scores() {
  if (columns() == 0) return std::vector<Row>(static_cast<size_t>(c_.owners()));
  Rows rows = indicator();
  std::vector<Rational> drifts;
  for (const char step : c_.settings.text("order")) {
    if (step == 'a') aggregate(rows, drifts);
    if (step == 'g') group(rows);
    for (size_t a = 0; step == 's' && a < rows.size(); ++a)
      for (Row& row : rows[a]) row = smoothed(c_.settings, row, drifts.empty() ? 0 : drifts[a]);
  }
  std::vector<Row> result;
  for (auto& head : rows) result.push_back(head[0]);
  return result;
}

std::vector<Row> PartScorer::deviations() {
  Rows rows = indicator();
  group(rows);
  std::vector<Row> result;
  for (const auto& head : rows) {
    Row deviation;
    for (size_t c = 0; c < columns(); ++c) {
      double sum = 0, squares = 0, seen = 0;
      for (size_t j = 0; j < queries(); ++j)
        if (visible(j, c)) sum += head[j][c], squares += head[j][c] * head[j][c], ++seen;
      const double mean = seen > 0 ? sum / seen : 0;
      deviation.push_back(seen > 0 ? std::sqrt(std::max(0.0, squares / seen - mean * mean)) : 0);
    }
    result.push_back(std::move(deviation));
  }
  return result;
}

// ---- prior, weight, normalize ------------------------------------------------------------------

double weight_of(const PolicyCase& c, LayerFacts& facts, int owner, int64_t i) {
  const std::string& kind = c.settings.text("weight");
  if (kind == "none") return 1;
  const bool projected = kind.starts_with("projected"), first = kind.ends_with("l1");
  if (c.per_query_head()) return facts.value_norm(owner, i, projected, first);
  const int g = c.info->group_size();
  double sum = 0;
  for (int h = owner * g; h < (owner + 1) * g; ++h)
    sum += facts.value_norm(h, i, projected, first) / g;
  return sum;
}

void apply_prior(const PolicyCase& c, Row& row) {
  if (c.settings.is("prior", "none") || row.empty()) return;
  double least = c.settings.real("prior_value");
  if (c.settings.is("prior", "head-mean") || c.settings.is("prior", "mean-share")) {
    const double share = c.settings.is("prior", "head-mean") ? 1 : c.settings.real("prior_share");
    least = 0;
    for (const double x : row) least += share * x / static_cast<double>(row.size());
  }
  for (double& x : row) x = std::max(x, least);
}

/// [owner][c] of one part: (s + epsilon) w, divided by what `normalize` says.
void weigh(const PolicyCase& c, const std::vector<Row>& w, std::vector<Row>& s) {
  const std::string& kind = c.settings.text("normalize");
  const double epsilon = c.settings.real("weight_epsilon");
  double layer = 0;
  for (const Row& row : w)
    for (const double x : row) layer += x;
  for (size_t o = 0; o < s.size(); ++o) {
    double head = 0;
    for (const double x : w[o]) head += x;
    for (size_t x = 0; x < s[o].size(); ++x) {
      double heads = 0;
      for (const Row& row : w) heads += row[x];
      const double divisor = kind == "none"        ? 1
                             : kind == "head-sum"  ? head
                             : kind == "layer-sum" ? layer
                                                   : heads;
      s[o][x] = (s[o][x] + epsilon) * (divisor != 0 ? w[o][x] / divisor : w[o][x]);
    }
  }
}

}  // namespace

Scores score_layer(const PolicyCase& c, const LayerTrace& layer) {
  LayerFacts facts(c, layer);
  const auto n = static_cast<size_t>(c.n());
  const auto owners = static_cast<size_t>(c.owners());
  Scores result;
  result.layer = layer.layer;
  result.candidate.assign(n, 0);
  for (auto* table : {&result.final_score, &result.final_raw, &result.unweighted,
                      &result.unweighted_raw, &result.deviation})
    table->assign(owners, Row(n, 0.0));
  for (const Part& part : parts_of(c)) {
    PartScorer scorer(c, facts, part);
    std::vector<Row> s, w(owners);
    if (has_queries(c)) {
      s = scorer.scores();
    } else {
      for (size_t o = 0; o < owners; ++o) {
        const Row all = entry_scores(c, layer, static_cast<int>(o));
        Row own;
        for (const int64_t i : part.candidates) own.push_back(all[static_cast<size_t>(i)]);
        s.push_back(own.empty() ? own : smoothed(c.settings, own, 0));
      }
    }
    for (size_t o = 0; o < owners; ++o)
      for (const int64_t i : part.candidates)
        w[o].push_back(weight_of(c, facts, static_cast<int>(o), i));
    std::vector<Row> raw = s;
    for (Row& row : s) apply_prior(c, row);
    std::vector<Row> weighed = s, weighed_raw = raw, deviation(owners);
    weigh(c, w, weighed);
    weigh(c, w, weighed_raw);
    if (c.settings.real("std_keep") > 0) deviation = scorer.deviations();
    for (size_t o = 0; o < owners; ++o)
      for (size_t x = 0; x < part.candidates.size(); ++x) {
        const auto i = static_cast<size_t>(part.candidates[x]);
        result.candidate[i] = 1;
        result.unweighted[o][i] = s[o][x];
        result.unweighted_raw[o][i] = raw[o][x];
        result.final_score[o][i] = weighed[o][x];
        result.final_raw[o][i] = weighed_raw[o][x];
        if (!deviation[o].empty()) result.deviation[o][i] = deviation[o][x];
        if (std::isnan(weighed[o][x])) throw std::domain_error("a score is not a number");
      }
  }
  if (!c.settings.is("queries", "none")) {
    const auto of = [&](int h, int64_t j) -> const Row& { return facts.attention(h, j); };
    observe_layer(c, of, result);
  }
  return result;
}

}  // namespace kvsim::reference
