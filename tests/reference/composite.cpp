// Budgets by composite tokens (policies.md 7).
#include <algorithm>
#include <map>
#include <tuple>

#include "tests/reference/policy_allocation.hpp"

namespace kvsim::reference {
namespace {

/// KVCompose: rank r of a layer is worth the mean over heads of what each has there; ranks with a
/// protected entry are sure. The first layer has at each rank the best of all.
Budgets composite(const PolicyCase& c, const std::vector<int>&, const std::vector<Scores>& scores,
                  double& closest) {
  const auto owners = static_cast<size_t>(c.owners());
  const auto count = static_cast<int64_t>(scores.size());
  std::vector<std::map<int64_t, double>> ranks(scores.size());  // value of each rank that is open
  std::vector<int64_t> given(scores.size(), 0);
  for (size_t l = 0; l < scores.size(); ++l) {
    std::vector<std::map<int64_t, double>> heads(owners);
    for (size_t o = 0; o < owners; ++o) {
      const Protected sure = before_allocation(c, scores[l], o);
      if (static_cast<int64_t>(sure.guarded.size()) >= c.entries())
        return Budgets(scores.size(), std::vector<int64_t>(owners, c.entries()));
      auto rank = static_cast<int64_t>(sure.both.size());
      given[l] = std::max(given[l], rank);
      for (const Entry& entry : entries_of(c, scores[l], l, o, sure.both))
        heads[o][rank++] = joint_factor(c, scores, l) * entry.score;
    }
    for (int64_t r = given[l]; r < c.n(); ++r) {
      double sum = 0;
      bool in_all = true;
      for (const auto& head : heads) {
        in_all = in_all && head.contains(r);
        sum += head.contains(r) ? head.at(r) : 0;
      }
      if (in_all) ranks[l][r] = sum / static_cast<double>(owners);
    }
  }
  std::vector<Entry> own;
  for (size_t l = 0; l < scores.size(); ++l)
    for (const auto& [r, value] : ranks[l]) own.push_back({.score = value, .owner = l, .layer = l});
  const bool lifted = c.settings.is("composite_first", "lifted");
  for (auto& [r, value] : ranks[0])
    for (const auto& layer : ranks)
      if (lifted && layer.contains(r)) value = std::max(value, layer.at(r));
  std::vector<Entry> open;  // a lower layer and rank is better among equals
  for (size_t l = 0; l < scores.size(); ++l)
    for (const auto& [r, value] : ranks[l])
      open.push_back({.score = value, .position = -r, .owner = l, .layer = l});
  std::stable_sort(open.begin(), open.end(), [](const Entry& a, const Entry& b) {
    return std::tuple(-a.score, a.layer, -a.position) < std::tuple(-b.score, b.layer, -b.position);
  });
  int64_t left = c.settings.is("ada_total", "product")
                     ? (Rational(c.n()) * c.ratio() * Rational(count)).floor()
                     : count * c.entries();
  for (const int64_t sure : given) left -= sure;
  left = std::clamp<int64_t>(left, 0, static_cast<int64_t>(open.size()));
  for (int64_t k = 0; k < left; ++k) ++given[open[static_cast<size_t>(k)].layer];
  std::vector<Place> ranked;
  for (const Entry& entry : open) ranked.push_back({.score = entry.score});
  closest = std::min(closest, closest_at_cut(c, ranked, static_cast<size_t>(left)));
  const auto next = open.begin() + left;  // layers that are equal but for rounding, not by lifting
  if (left > 0 && next != open.end() && next[-1].score == next->score &&
      std::ranges::any_of(own, [&](const Entry& one) {
        return one.score == next->score && equal_but_for_rounding(own, one);
      }))
    closest = 0;
  for (int64_t& b : given) b = std::max<int64_t>(1, b);
  return same_for_owners(c, given);
}

const References<AllocateReference> by_composites{{"composite", {composite}}};

}  // namespace
}  // namespace kvsim::reference
