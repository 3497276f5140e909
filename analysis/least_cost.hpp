#pragma once
#include <vector>

namespace kvsim {

/// One setting: what it costs, and how large its error is.
struct CostPoint {
  double cost = 0;
  double error = 0;
};

/// The least cost with an error of at most `error`: of the points, and between neighbours of which
/// one is below and one above, on a line in logarithms of both. NaN where no point comes so low. A
/// point that costs more than one of the same error or less does not count.
double least_cost(std::vector<CostPoint> points, double error);

}  // namespace kvsim
