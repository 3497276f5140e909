#pragma once
#include <catch2/catch.hpp>

#include "sim/core/prelude.hpp"

namespace kvsim::test {

/// Every number within `tolerance` (relative, absolute below 1) of the one computed on paper.
class Near : public Catch::MatcherBase<std::vector<double>> {
 public:
  Near(std::vector<double> expected, double tolerance)
      : expected_(std::move(expected)), tolerance_(tolerance) {}
  bool match(const std::vector<double>& found) const override {
    if (found.size() != expected_.size()) return false;
    for (size_t i = 0; i < found.size(); ++i)
      if (!(std::fabs(found[i] - expected_[i]) <=
            tolerance_ * std::max(1.0, std::fabs(expected_[i]))))
        return false;
    return true;
  }
  std::string describe() const override {
    std::ostringstream text;
    text << "is near {";
    for (const double x : expected_) text << " " << x;
    text << " }";
    return text.str();
  }

 private:
  std::vector<double> expected_;
  double tolerance_;
};

/// Float32 attention has about 1e-7 of rounding; 1e-6 leaves room for the logarithms of weights.
inline Near near(std::vector<double> expected, double tolerance = 1e-6) {
  return {std::move(expected), tolerance};
}

}  // namespace kvsim::test
