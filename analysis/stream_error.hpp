#pragma once
#include <span>
#include <vector>

namespace kvsim {

/// Effect of compression on the residual stream at each step, all layers together: the root of the
/// summed squares of the layers' errors, relative to the stream that enters the last layer. The
/// predictor of studies/prediction.md.
class StreamError {
 public:
  /// Absolute errors [T] of one layer (norm of its output's change); NaN: not evaluated.
  void add_layer(std::span<const double> error);
  /// `norm` [T]: residual stream entering the last layer. 0 over 0 is 0, else NaN.
  std::vector<double> relative_to(std::span<const double> norm) const;

 private:
  std::vector<double> squares_;
};

}  // namespace kvsim
