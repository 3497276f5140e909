#include "sim/stages/stages.hpp"

namespace kvsim::stages::prior::prior {
namespace {

const Declare prior("prior", "kind", "none", "a floor under the scores");
const Declare prior_value("prior_value", "number >= 0 score", "0.0001", "the constant floor",
                          tested("0 0.01 0.1"));

struct HeadMean : Prior {
  HeadMean()
      : Prior({"prior", "head-mean", "max(score, mean score of the head's candidates)",
               "DefensiveKV Algorithm 1"}) {}
  void apply(const Settings&, std::span<double> scores) const override {
    if (scores.empty()) return;
    double sum = 0;
    for (double s : scores) sum += s;
    const double mean = sum / static_cast<double>(scores.size());
    for (double& s : scores) s = std::max(s, mean);
  }
};

struct Constant : Prior {
  Constant()
      : Prior({"prior", "constant", "max(score, `prior_value`)", "DefensiveKV, ablation",
               "prior_value"}) {}
  void apply(const Settings& settings, std::span<double> scores) const override {
    const double floor = settings.real(prior_value);
    for (double& s : scores) s = std::max(s, floor);
  }
};

const Declare prior_share("prior_share", "number >= 0", "0.5",
                          "the floor as a share of the head's mean score", tested("0 0.3 2"));

struct MeanShare : Prior {
  MeanShare()
      : Prior({"prior", "mean-share",
               "max(score, `prior_share` times the mean score of the head's candidates)",
               "kvsim, after DefensiveKV Algorithm 1", "prior_share"}) {}
  void apply(const Settings& settings, std::span<double> scores) const override {
    double sum = 0;
    for (const double s : scores) sum += s;
    const double floor = settings.real(prior_share) * sum /
                         static_cast<double>(std::max<size_t>(scores.size(), 1));
    for (double& s : scores) s = std::max(s, floor);
  }
};
const RegisterNone<Prior> none("prior", "no floor");
const Register<Prior, HeadMean, Constant, MeanShare> registered;

}  // namespace
}  // namespace kvsim::stages::prior::prior
