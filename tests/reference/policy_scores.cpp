#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "tests/reference/kinds.hpp"
#include "tests/reference/policy_smoothing.hpp"
#include "tests/reference/reference.hpp"

namespace kvsim::reference {
namespace {

class PartScorer {
 public:
  PartScorer(const PolicyCase& c, LayerFacts& layer, const Part& part)
      : c_(c), indicator_(References<IndicatorReference>::of(c.settings)), at_{c, layer, part} {}

  /// Grouped scores of the part: [owner][c].
  std::vector<Row> scores();
  /// sqrt(max(0, mean of squares - square of mean)) of the grouped rows, over queries that see i.
  std::vector<Row> deviations();

 private:
  size_t queries() const { return at_.part.queries.size(); }
  size_t columns() const { return at_.part.candidates.size(); }
  bool sees(size_t j, size_t c) const {
    return indicator_.from_behind && at_.query(j) < kProbeQuery
               ? !c_.rescored() || at_.part.range.contains(at_.query(j))
               : at_.visible(j, c);
  }
  Rows indicator();
  double aggregated(const std::vector<Row>& rows, size_t c) const;
  void aggregate(Rows& rows, std::vector<Rational>& drift);
  void group(Rows& rows) const;
  Rational drift_of(const std::vector<Row>& rows, int head);

  const PolicyCase& c_;
  const IndicatorReference& indicator_;
  PartFacts at_;
};

Rows PartScorer::indicator() {
  Rows rows;
  if (indicator_.observed) {
    Part part = at_.part;
    std::erase_if(part.queries, [&](int64_t j) { return j < c_.n() && !part.range.contains(j); });
    for (Row& row : indicator_.observed(c_, at_.layer.layer(), part))
      rows.push_back({std::move(row)});
    return rows;
  }
  const int count = indicator_.per_kv_head ? c_.info->num_kv_heads : at_.layer.heads();
  for (int a = 0; a < count; ++a) {
    rows.emplace_back();
    for (size_t j = 0; j < queries(); ++j) {
      Row row;
      for (size_t c = 0; c < columns(); ++c) row.push_back(indicator_.element(at_, a, j, c));
      rows.back().push_back(std::move(row));
    }
  }
  if (indicator_.finish_rows) indicator_.finish_rows(rows);
  return rows;
}

/// Delta of one head-axis entry from the rows that enter `aggregate`, or from the attention rows
/// over all keys that each query sees.
Rational PartScorer::drift_of(const std::vector<Row>& rows, int head) {
  const bool attention = References<SmoothReference>::of(c_.settings).follows ==
                         SmoothReference::Follows::attention;
  const int64_t free = std::max<int64_t>(c_.entries() - c_.window(), 0);
  const int follows = indicator_.per_kv_head ? head * c_.info->group_size() : head;
  std::vector<Row> followed = rows;
  for (size_t j = 0; attention && j < followed.size(); ++j) {
    followed[j] = at_.layer.attention(follows, at_.query(j));
    followed[j].resize(static_cast<size_t>(std::min(at_.query(j) + 1, c_.n())));
  }
  return drift(followed, free);
}

/// Entry c of one head over J: a probe beside the prompt's queries by itself.
double PartScorer::aggregated(const std::vector<Row>& rows, size_t c) const {
  const auto& kind = References<AggregateReference>::of(c_.settings);
  const auto& join = References<JoinReference>::of(c_.settings);
  Column prompt, probe;
  for (size_t j = 0; j < queries(); ++j) {
    Column& own = join.of && static_cast<int64_t>(j) >= at_.part.prompt_queries ? probe : prompt;
    own.x.push_back(rows[j][c]);
    own.seen.push_back(sees(j, c));
  }
  return join.of ? join.of(c_.settings, kind.of(c_, prompt), kind.of(c_, probe))
                 : kind.of(c_, prompt);
}

void PartScorer::aggregate(Rows& rows, std::vector<Rational>& drifts) {
  if (indicator_.observed) return;
  const auto& smooth = References<SmoothReference>::of(c_.settings);
  for (size_t a = 0; a < rows.size(); ++a) {
    if (smooth.follows != SmoothReference::Follows::nothing)
      drifts.push_back(drift_of(rows[a], static_cast<int>(a)));
    Row one;
    for (size_t c = 0; c < columns(); ++c) one.push_back(aggregated(rows[a], c));
    if (indicator_.finish_aggregated) indicator_.finish_aggregated(at_, static_cast<int>(a), one);
    rows[a] = {one};
  }
}

void PartScorer::group(Rows& rows) const {
  const auto& kind = References<GroupReference>::of(c_.settings);
  if (!kind.of || indicator_.per_kv_head) return;
  const size_t size = kind.whole_layer ? rows.size() : static_cast<size_t>(c_.info->group_size());
  Rows grouped;
  for (size_t begin = 0; begin < rows.size(); begin += size) {
    std::vector<Row> one = rows[begin];
    for (size_t j = 0; j < one.size(); ++j)
      for (size_t c = 0; c < one[j].size(); ++c) {
        Row heads;
        for (size_t h = begin; h < begin + size; ++h) heads.push_back(rows[h][j][c]);
        one[j][c] = kind.of(heads);
      }
    grouped.push_back(std::move(one));
  }
  if (kind.whole_layer) grouped.resize(static_cast<size_t>(c_.owners()), grouped[0]);
  rows = std::move(grouped);
}

std::vector<Row> PartScorer::scores() {
  if (columns() == 0) return std::vector<Row>(static_cast<size_t>(c_.owners()));
  const auto& smooth = References<SmoothReference>::of(c_.settings);
  Rows rows = indicator();
  std::vector<Rational> drifts;
  for (const char step : c_.settings.text("order")) {
    if (step == 'a') aggregate(rows, drifts);
    if (step == 'g') group(rows);
    for (size_t a = 0; step == 's' && a < rows.size(); ++a)
      for (Row& row : rows[a]) row = smooth.of(c_.settings, row, drifts.empty() ? 0 : drifts[a]);
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
        if (sees(j, c)) sum += head[j][c], squares += head[j][c] * head[j][c], ++seen;
      const double mean = seen > 0 ? sum / seen : 0;
      deviation.push_back(seen > 0 ? std::sqrt(std::max(0.0, squares / seen - mean * mean)) : 0);
    }
    result.push_back(std::move(deviation));
  }
  return result;
}

double weight_of(const PolicyCase& c, LayerFacts& facts, int owner, int64_t i) {
  const auto& kind = References<WeightReference>::of(c.settings);
  if (!kind.of) return 1;
  if (c.per_query_head()) return kind.of(facts, owner, i);
  const int g = c.info->group_size();
  double sum = 0;
  for (int h = owner * g; h < (owner + 1) * g; ++h) sum += kind.of(facts, h, i) / g;
  return sum;
}

double largest(const Row& row) { return *std::ranges::max_element(row); }

/// On the scale on which later compressions remember scores.
void level_scores(const PolicyCase& c, std::vector<Row>& s) {
  if (!References<MemoryReference>::of(c.settings).over_largest) return;
  for (Row& row : s)
    if (const double most = row.empty() ? 0 : largest(row); most > 0)
      for (double& x : row) x /= most;
}

/// Scores [owner][c] of one part, mixed with what the keys of the whole prompt say, too.
void lower_redundant(const PolicyCase& c, const LayerTrace& layer, const Part& part,
                     std::vector<Row>& s) {
  const auto& kind = References<RedundancyReference>::of(c.settings);
  if (!kind.of) return;
  const int heads = c.per_query_head() ? 1 : c.info->group_size();
  for (size_t o = 0; o < s.size(); ++o) {
    std::vector<Row> keys;
    for (int64_t i = 0; i < c.n(); ++i)
      keys.push_back(key_of(layer, static_cast<int>(o) * heads, i));
    const Row all = kind.of(c.settings, keys);
    Row said;
    for (const int64_t i : part.candidates) said.push_back(all[static_cast<size_t>(i)]);
    const double over = kind.over_largest && !said.empty() ? largest(said) : 1;
    for (size_t x = 0; x < s[o].size(); ++x)
      s[o][x] = kind.mix(c.settings, s[o][x], said[x] / over);
  }
}

void apply_prior(const PolicyCase& c, Row& row) {
  const auto& kind = References<PriorReference>::of(c.settings);
  if (!kind.least || row.empty()) return;
  const double least = kind.least(c.settings, row);
  for (double& x : row) x = std::max(x, least);
}

/// [owner][c] of one part: (s + epsilon) w, divided by what `normalize` says.
void weigh(const PolicyCase& c, const std::vector<Row>& w, std::vector<Row>& s) {
  const auto& kind = References<NormalizeReference>::of(c.settings);
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
      const double divisor = kind.divisor(head, layer, heads);
      s[o][x] = (s[o][x] + epsilon) * (divisor != 0 ? w[o][x] / divisor : w[o][x]);
    }
  }
  for (size_t x = 0; kind.adds_mean && x < s[0].size(); ++x) {
    double sum = 0;
    for (const Row& row : s) sum += row[x];
    for (Row& row : s) row[x] += sum / static_cast<double>(s.size());
  }
}

void check_numbers(const Row& scores) {
  if (std::ranges::any_of(scores, [](double x) { return std::isnan(x); }))
    throw std::domain_error("a score is not a number");
}

}  // namespace

Scores score_layer(const PolicyCase& c, const LayerTrace& layer) {
  LayerFacts facts(c, layer);
  const auto n = static_cast<size_t>(c.n());
  const auto owners = static_cast<size_t>(c.owners());
  const auto& indicator = References<IndicatorReference>::of(c.settings);
  const auto& smooth = References<SmoothReference>::of(c.settings);
  Scores result;
  result.layer = layer.layer;
  result.candidate.assign(n, 0);
  for (auto* table : {&result.final_score, &result.final_raw, &result.unweighted,
                      &result.unweighted_raw, &result.deviation})
    table->assign(owners, Row(n, 0.0));
  for (const Part& part : parts_of(c)) {
    PartScorer scorer(c, facts, part);
    std::vector<Row> s, w(owners);
    if (!indicator.entries) {
      s = scorer.scores();
    } else {
      for (size_t o = 0; o < owners; ++o) {
        const Row all = indicator.entries(c, layer, static_cast<int>(o));
        Row own;
        for (const int64_t i : part.candidates) own.push_back(all[static_cast<size_t>(i)]);
        s.push_back(own.empty() ? own : smooth.of(c.settings, own, 0));
      }
    }
    for (size_t o = 0; o < owners; ++o)
      for (const int64_t i : part.candidates)
        w[o].push_back(weight_of(c, facts, static_cast<int>(o), i));
    const auto& weight = References<WeightReference>::of(c.settings);
    for (size_t o = 0; o < owners && weight.settle; ++o) weight.settle(w[o]);
    for (const Row& row : s) check_numbers(row);
    level_scores(c, s);
    lower_redundant(c, layer, part, s);
    std::vector<Row> raw = s;
    for (Row& row : s) apply_prior(c, row);
    std::vector<Row> weighed = s, weighed_raw = raw, deviation(owners);
    weigh(c, w, weighed);
    weigh(c, w, weighed_raw);
    for (const Row& row : weighed) check_numbers(row);
    if (c.settings.real("std_keep") > 0) deviation = scorer.deviations();
    for (auto* scores : {&s, &raw, &weighed, &weighed_raw})
      shape_scores(c, part.candidates, *scores);
    for (size_t o = 0; o < owners; ++o)
      for (size_t x = 0; x < part.candidates.size(); ++x) {
        const auto i = static_cast<size_t>(part.candidates[x]);
        result.candidate[i] = 1;
        result.unweighted[o][i] = s[o][x];
        result.unweighted_raw[o][i] = raw[o][x];
        result.final_score[o][i] = weighed[o][x];
        result.final_raw[o][i] = weighed_raw[o][x];
        if (!deviation[o].empty()) result.deviation[o][i] = deviation[o][x];
      }
  }
  if (!c.settings.is("queries", "none")) {
    const auto of = [&](int h, int64_t j) -> const Row& { return facts.attention(h, j); };
    observe_layer(c, of, result);
  }
  return result;
}

}  // namespace kvsim::reference
