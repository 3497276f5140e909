#include <algorithm>
#include <cmath>
#include <numeric>

#include "sim/stages/allocate/allocate.hpp"

namespace kvsim {
namespace {

constexpr double kEqualParts = 1e-9;  // fractional parts closer than this are a tie

/// Divides `total` over the open indices; Quota gives floor and fractional part of an index.
template <class Quota>
void largest_remainder(int64_t total, const std::vector<size_t>& open, const Quota& quota,
                       std::vector<int64_t>& shares) {
  std::vector<double> part(open.size());
  int64_t given = 0;
  for (size_t at = 0; at < open.size(); ++at) {
    const auto [whole, fraction] = quota(open[at]);
    shares[open[at]] = whole;
    part[at] = fraction;
    given += whole;
  }
  std::vector<bool> raised(open.size(), false);
  for (; given < total; ++given) {
    size_t best = open.size();
    for (size_t at = 0; at < open.size(); ++at)
      if (!raised[at] && (best == open.size() || part[at] > part[best] + kEqualParts)) best = at;
    if (best == open.size()) break;
    raised[best] = true;
    ++shares[open[best]];
  }
}

/// The common part of both forms: fixes shares at their caps and starts again with the rest.
template <class Divide>
std::vector<int64_t> with_caps(int64_t total, const std::vector<int64_t>& caps,
                               const Divide& divide) {
  std::vector<int64_t> shares(caps.size(), 0);
  std::vector<size_t> open(caps.size());
  std::iota(open.begin(), open.end(), size_t{0});
  while (!open.empty()) {
    divide(total, open, shares);
    const auto full = std::stable_partition(open.begin(), open.end(),
                                            [&](size_t k) { return shares[k] <= caps[k]; });
    if (full == open.end()) break;
    for (auto k = full; k != open.end(); ++k) {
      shares[*k] = caps[*k];
      total -= caps[*k];
    }
    open.erase(full, open.end());
  }
  return shares;
}

}  // namespace

std::vector<int64_t> apportion(int64_t total, std::vector<double> weights, int64_t cap) {
  const std::vector<int64_t> caps(weights.size(), cap);
  return with_caps(
      total, caps,
      [&](int64_t rest, const std::vector<size_t>& open, std::vector<int64_t>& shares) {
    double sum = 0;
    for (size_t k : open) sum += weights[k];
    largest_remainder(
        rest, open,
        [&](size_t k) {
      const double share = sum > 0 ? weights[k] / sum : 1.0 / static_cast<double>(open.size());
      const double quota = static_cast<double>(rest) * share;
      // A quota that rounding left just below a whole number is that number.
      double whole = std::floor(quota + kEqualParts);
      return std::pair{static_cast<int64_t>(whole), std::max(0.0, quota - whole)};
        },
        shares);
      });
}

std::vector<int64_t> apportion_exact(int64_t total, const std::vector<int64_t>& weights,
                                     const std::vector<int64_t>& caps) {
  return with_caps(
      total, caps,
      [&](int64_t rest, const std::vector<size_t>& open, std::vector<int64_t>& shares) {
    int64_t sum = 0;
    for (size_t k : open) sum += weights[k];
    largest_remainder(
        rest, open,
        [&](size_t k) {
      const int64_t weight = sum > 0 ? weights[k] : 1;
      const int64_t whole_sum = sum > 0 ? sum : static_cast<int64_t>(open.size());
      const int64_t product = rest * weight;
      return std::pair{product / whole_sum,
                       static_cast<double>(product % whole_sum) / static_cast<double>(whole_sum)};
        },
        shares);
      });
}

int64_t product_total(const AllocationRequest& request, int64_t heads) {
  if (request.budget_is_count) return request.budget * heads;
  return request.ratio.floor_times(request.entries * heads);
}

}  // namespace kvsim
