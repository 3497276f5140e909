#include <algorithm>
#include <cmath>

#include "sim/stages/allocate/allocate.hpp"

namespace kvsim {
namespace keys {

const Declare joint_depth("joint_depth", "number >= 0", "0",
                          "scores of layer l of L count exp(-joint_depth l/L) times",
                          tested("0.5 2"));
const Declare joint_stream("joint_stream", "number >= 0", "0",
                           "scores of a layer are divided by this power of the stream there",
                           tested("0.5 1"));

}  // namespace keys

/// Less in deeper layers, and less where the residual stream is long, since an error counts by the
/// stream it is added to. The stream is the geometric mean of what enters the layer and what enters
/// the next one of the run.
std::vector<double> layer_factors(const AllocationRequest& request) {
  const double depth = request.settings->real(keys::joint_depth);
  const double power = request.settings->real(keys::joint_stream);
  std::vector<double> factors;
  for (size_t l = 0; l < request.layers.size(); ++l) {
    const AllocationLayer& one = request.layers[l];
    factors.push_back(std::exp(-depth * one.layer / request.model_layers));
    if (power == 0) continue;
    const size_t next = std::min(l + 1, request.layers.size() - 1);
    const double stream = one.scored->stream_norm * request.layers[next].scored->stream_norm;
    factors.back() *= std::pow(stream, -power / 2);
  }
  return factors;
}

}  // namespace kvsim
