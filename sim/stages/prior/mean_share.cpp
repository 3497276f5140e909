#include <algorithm>

#include "sim/stages/parameter.hpp"
#include "sim/stages/prior/prior.hpp"

namespace kvsim::stages::prior::mean_share {
namespace {

const Declare prior_share("prior_share", "number >= 0", "0.5",
                          "the floor as a share of the head's mean score", tested("0 0.3 2"));

class MeanShare : public Prior {
 public:
  MeanShare()
      : Prior({"prior",
               "mean-share",
               "max(score, `prior_share` times the mean score of the head's candidates)",
               "kvsim, after DefensiveKV Algorithm 1",
               {"prior_share"}}) {}
  void apply(const Settings& settings, std::span<double> scores) const override {
    double sum = 0;
    for (const double s : scores) sum += s;
    const double floor = settings.real(prior_share) * sum /
                         static_cast<double>(std::max<size_t>(scores.size(), 1));
    for (double& s : scores) s = std::max(s, floor);
  }
};
const Register<Prior, MeanShare> mean_share;

}  // namespace
}  // namespace kvsim::stages::prior::mean_share
