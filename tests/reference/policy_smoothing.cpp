#include "tests/reference/policy_smoothing.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "tests/reference/kinds.hpp"

namespace kvsim::reference {
namespace {

double sum_of(const Row& row) { return std::accumulate(row.begin(), row.end(), 0.0); }

Row adaptive(const Settings& settings, const Row& row, Rational drift) {
  const Rational beta = Rational::parse(settings.text("aws_beta"));
  const Rational size = drift < Rational(0) ? Rational(0) - drift : drift;
  const int64_t width = std::max(settings.count("aws_min"), 2 * (size / beta).floor() + 1);
  int64_t shift = (drift / beta).floor();
  if (drift < Rational(0)) shift += 1;
  if (settings.is("smooth", "aws-printed") && !(Rational(0) < drift))
    shift = (size / beta).floor() + 1;
  if (drift == Rational(0) && settings.is("smooth", "aws-code")) shift = 1;
  const auto last = static_cast<int64_t>(row.size()) - 1;
  Row out(row.size(), 0.0);
  for (int64_t i = 0; i <= last; ++i) {
    double sum = 0;
    for (int64_t d = -(width / 2); d <= width / 2; ++d)
      sum += row[static_cast<size_t>(std::clamp<int64_t>(i + shift + d, 0, last))];
    out[static_cast<size_t>(i)] = sum / static_cast<double>(width);
  }
  return out;
}

/// Sum or largest of the k entries around each; `replicate`: the ends stand for what is outside.
struct Pooled {
  Row sum, most;
};
Pooled pooled(const Settings& settings, const Row& row, bool replicate) {
  const int64_t k = settings.count("kernel");
  const auto last = static_cast<int64_t>(row.size()) - 1;
  Pooled out;
  for (int64_t i = 0; i <= last; ++i) {
    double sum = 0, most = -INFINITY;
    for (int64_t x = i - k / 2; x <= i + k / 2; ++x) {
      const bool inside = x >= 0 && x <= last;
      if (const double own = inside ? row[static_cast<size_t>(x)] : most;
          own > most || std::isnan(own))
        most = own;
      if (inside || replicate) sum += row[static_cast<size_t>(std::clamp<int64_t>(x, 0, last))];
    }
    out.sum.push_back(sum / static_cast<double>(k));
    out.most.push_back(most);
  }
  return out;
}

Row renormalized(const Settings& settings, const Row& row, Rational) {
  Row out = pooled(settings, row, false).sum;
  if (sum_of(row) == 0) return out;
  const double factor = sum_of(row) / sum_of(out);
  for (double& x : out) x *= factor;
  return out;
}

const References<SmoothReference> smooths{
    {"none", {[](const Settings&, const Row& row, Rational) { return row; }}},
    {"avg",
     {[](const Settings& s, const Row& row, Rational) { return pooled(s, row, false).sum; }}},
    {"avg-replicate",
     {[](const Settings& s, const Row& row, Rational) { return pooled(s, row, true).sum; }}},
    {"avg-renormalized", {renormalized}},
    {"max",
     {[](const Settings& s, const Row& row, Rational) { return pooled(s, row, false).most; }}},
    {"aws", {.of = adaptive, .follows = SmoothReference::Follows::rows}},
    {"aws-printed", {.of = adaptive, .follows = SmoothReference::Follows::rows}},
    {"aws-code", {.of = adaptive, .follows = SmoothReference::Follows::attention}},
};

}  // namespace

Rational drift(const std::vector<Row>& rows, int64_t free) {
  const size_t m = rows.size();
  if (free == 0 || m < 2) return 0;
  std::vector<Rational> mean_position;
  for (const Row& row : rows) {
    std::vector<size_t> order(row.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::sort(order.begin(), order.end(),
              [&](size_t a, size_t b) { return row[a] != row[b] ? row[a] > row[b] : a > b; });
    order.resize(std::min(order.size(), static_cast<size_t>(free)));
    int64_t sum = 0;
    for (const size_t i : order) sum += static_cast<int64_t>(i);
    mean_position.push_back(Rational(sum) / Rational(static_cast<int64_t>(order.size())));
  }
  const auto half = static_cast<int64_t>(m / 2);
  const auto middle = mean_position.begin() + half;
  const Rational front = std::accumulate(mean_position.begin(), middle, Rational(0));
  const Rational rear = std::accumulate(middle, mean_position.end(), Rational(0));
  return front / Rational(half) - rear / Rational(static_cast<int64_t>(m) - half);
}

void observe_layer(const PolicyCase& c,
                   const std::function<const Row&(int head, int64_t query)>& attention,
                   Scores& scores) {
  const auto n = static_cast<size_t>(c.n());
  const int heads = c.info->num_query_heads;
  const int64_t m = c.window();
  scores.mean_attention.assign(static_cast<size_t>(c.owners()), Row(n, 0.0));
  for (int h = 0; h < heads; ++h) {
    Row summed(n, 0.0);
    double parts_variance = 0;
    std::vector<int64_t> columns;
    for (const Part& part : parts_of(c)) {
      const auto rows = static_cast<double>(part.queries.size());
      for (const int64_t i : part.candidates) {
        const auto at = [&](int64_t j) {
          const bool across = c.rescored() && j < kProbeQuery && !part.range.contains(j);
          return across ? 0.0 : attention(h, j)[static_cast<size_t>(i)];
        };
        double sum = 0, squares = 0;
        for (const int64_t j : part.queries) {
          sum += at(j);
          scores.entropy -= at(j) * std::log(at(j) + 1e-10);
        }
        for (const int64_t j : part.queries) squares += (at(j) - sum / rows) * (at(j) - sum / rows);
        if (rows > 1) parts_variance += squares / (rows - 1);
        summed[static_cast<size_t>(i)] = sum;
        columns.push_back(i);
        const int owner = c.per_query_head() ? h : h / c.info->group_size();
        const double share = c.per_query_head() ? 1 : 1.0 / c.info->group_size();
        scores.mean_attention[static_cast<size_t>(owner)][static_cast<size_t>(i)] += sum / rows *
                                                                                     share;
      }
      for (const int64_t j : part.queries) {
        const double weight = 1.0 / (rows * heads);
        const auto size = static_cast<int64_t>(part.candidates.size());
        for (int64_t x = std::max<int64_t>(0, size - m); x < size; ++x) {
          const int64_t i = part.candidates[static_cast<size_t>(x)];
          scores.shifted_bias += weight * attention(h, j)[static_cast<size_t>(i)];
        }
        for (int64_t i = c.n() - m; i < c.n(); ++i)
          scores.window_bias += weight * attention(h, j)[static_cast<size_t>(i)];
      }
    }
    scores.variance += parts_variance;
    double mean = 0, squares = 0;
    for (const int64_t i : columns)
      mean += summed[static_cast<size_t>(i)] / static_cast<double>(columns.size());
    for (const int64_t i : columns)
      squares += (summed[static_cast<size_t>(i)] - mean) * (summed[static_cast<size_t>(i)] - mean);
    scores.summed_variance.push_back(
        columns.size() > 1 ? squares / static_cast<double>(columns.size() - 1) : 0);
  }
  scores.entropy = std::max(0.0, scores.entropy);
}

}  // namespace kvsim::reference
