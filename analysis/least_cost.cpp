#include "analysis/least_cost.hpp"

#include <algorithm>
#include <cmath>

#include "analysis/undefined.hpp"

namespace kvsim {

double least_cost(std::vector<CostPoint> points, double error) {
  std::erase_if(points, [](const CostPoint& p) { return std::isnan(p.error) || p.cost <= 0; });
  std::ranges::sort(points, [](const CostPoint& a, const CostPoint& b) {
    return a.cost != b.cost ? a.cost < b.cost : a.error < b.error;
  });
  const CostPoint* before = nullptr;  // the best of those that cost less
  for (const CostPoint& point : points) {
    if (before != nullptr && point.error >= before->error) continue;
    if (point.error <= error) {
      if (before == nullptr || point.error <= 0) return point.cost;
      const double along = std::log(before->error / error) / std::log(before->error / point.error);
      return before->cost * std::pow(point.cost / before->cost, along);
    }
    before = &point;
  }
  return kUndefined;
}

}  // namespace kvsim
