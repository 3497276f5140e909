// Shapes that engines hold (policies.md 5.9): one set for all heads, whole blocks; thresholds.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "tests/reference/kinds.hpp"
#include "tests/reference/policy_allocation.hpp"

namespace kvsim::reference {
namespace {

double mean_over(const Row& x) {
  return std::accumulate(x.begin(), x.end(), 0.0) / static_cast<double>(x.size());
}
double largest_over(const Row& x) { return *std::max_element(x.begin(), x.end()); }
double root_mean_square_over(Row x) {
  for (double& one : x) one *= one;
  return std::sqrt(mean_over(x));
}

/// Each entry's scores in all heads become one.
UnionReference fold(double (*of)(const Row&)) {
  return {[of](const std::vector<Row>& heads) {
    Row united;
    for (size_t c = 0; c < heads[0].size(); ++c) {
      Row own;
      for (const Row& head : heads) own.push_back(head[c]);
      united.push_back(of(own));
    }
    return united;
  }};
}

/// Minus the number of entries that are better, in the head where these are fewest.
Row best_rank(const std::vector<Row>& heads) {
  Row united;
  for (size_t c = 0; c < heads[0].size(); ++c) {
    int64_t fewest = static_cast<int64_t>(heads[0].size());
    for (const Row& head : heads) {
      int64_t better = 0;
      for (size_t other = 0; other < head.size(); ++other)
        if (head[other] > head[c] || (head[other] == head[c] && other > c)) ++better;
      fewest = std::min(fewest, better);
    }
    united.push_back(-static_cast<double>(fewest));
  }
  return united;
}

const References<UnionReference> unions{
    {"none", {}},
    {"mean", fold([](const Row& x) { return mean_over(x); })},
    {"max", fold([](const Row& x) { return largest_over(x); })},
    {"root-mean-square", fold([](const Row& x) { return root_mean_square_over(x); })},
    {"best-rank", {best_rank}},
};

/// What exceeds the threshold beside what is kept for sure.
Budgets by_threshold(const PolicyCase& c, const std::vector<int>&,
                     const std::vector<Scores>& scores, double& closest) {
  Budgets budgets;
  const double unit = References<IndicatorReference>::of(c.settings).unit;
  for (size_t l = 0; l < scores.size(); ++l) {
    budgets.emplace_back();
    for (size_t o = 0; o < static_cast<size_t>(c.owners()); ++o) {
      Row all;
      for (const Entry& entry : entries_of(c, scores[l], l, o, {})) all.push_back(entry.score);
      double least = c.settings.real("threshold");
      if (c.settings.is("threshold_of", "mean") && !all.empty()) least *= mean_over(all);
      if (c.settings.is("threshold_of", "max") && !all.empty()) least *= largest_over(all);
      const Protected sure = before_allocation(c, scores[l], o);
      auto b = static_cast<int64_t>(sure.both.size());
      for (const Entry& entry : entries_of(c, scores[l], l, o, sure.both)) {
        b += entry.score > least ? 1 : 0;
        closest = std::min(closest, distance(entry.score, least, unit));
      }
      budgets.back().push_back(b);
    }
  }
  return budgets;
}

const References<AllocateReference> thresholds{{"threshold", {by_threshold}}};

}  // namespace

std::vector<int64_t> block_of(const PolicyCase& c, int64_t i) {
  const int64_t size = c.settings.count("block");
  std::vector<int64_t> all;
  for (int64_t k = 0; k < c.n(); ++k)
    if (k / size == i / size) all.push_back(k);
  return all;
}

void shape_scores(const PolicyCase& c, const std::vector<int64_t>& candidates,
                  std::vector<Row>& scores) {
  const auto& kind = References<UnionReference>::of(c.settings);
  if (candidates.empty()) return;
  if (kind.of) scores.assign(scores.size(), kind.of(scores));
  if (c.settings.count("block") == 1) return;
  for (Row& head : scores) {
    const Row before = head;
    for (size_t x = 0; x < head.size(); ++x) {
      Row block;
      for (size_t y = 0; y < head.size(); ++y)
        if (candidates[y] / c.settings.count("block") == candidates[x] / c.settings.count("block"))
          block.push_back(before[y]);
      head[x] = c.settings.is("block_score", "max")    ? largest_over(block)
                : c.settings.is("block_score", "mean") ? mean_over(block)
                                                       : root_mean_square_over(block);
    }
  }
}

void unite_layers(const PolicyCase& c, std::vector<Scores>& layers) {
  const auto& kind = References<UnionReference>::of(c.settings);
  if (!kind.of || !c.settings.is("union_layers", "yes") || layers.empty()) return;
  for (const Part& part : parts_of(c))
    for (auto table :
         {&Scores::final_score, &Scores::final_raw, &Scores::unweighted, &Scores::unweighted_raw}) {
      if (part.candidates.empty()) continue;
      std::vector<Row> rows;
      for (const Scores& layer : layers) {
        rows.emplace_back();
        for (const int64_t i : part.candidates)
          rows.back().push_back((layer.*table)[0][static_cast<size_t>(i)]);
      }
      const Row united = kind.of(rows);
      for (Scores& layer : layers)
        for (Row& owner : layer.*table)
          for (size_t x = 0; x < united.size(); ++x)
            owner[static_cast<size_t>(part.candidates[x])] = united[x];
    }
}

}  // namespace kvsim::reference
