#include "sim/stages/stages.hpp"

namespace kvsim::stages::prior::prior {

const Declare prior("prior", "kind", "none", "a floor under the scores");
const Declare prior_value("prior_value", "number >= 0 score", "0.0001", "the constant floor",
                          tested("0 0.01 0.1"));

void raise_to(double floor, std::span<double> scores) {
  for (double& s : scores) s = std::max(s, floor);
}

/// `share` times the mean.
double mean_of(std::span<const double> scores, double share) {
  double sum = 0;
  for (const double s : scores) sum += s;
  return share * sum / static_cast<double>(std::max<size_t>(scores.size(), 1));
}

struct HeadMean : Prior {
  HeadMean()
      : Prior({"head-mean", "max(score, mean score of the head's candidates)",
               "DefensiveKV Algorithm 1"}) {}
  void apply(const Settings&, std::span<double> scores) const override {
    raise_to(mean_of(scores, 1), scores);
  }
};

struct Constant : Prior {
  Constant()
      : Prior({"constant", "max(score, `prior_value`)", "DefensiveKV, ablation", "prior_value"}) {}
  void apply(const Settings& settings, std::span<double> scores) const override {
    raise_to(settings.real(prior_value), scores);
  }
};

const Declare prior_share("prior_share", "number >= 0", "0.5",
                          "the floor as a share of the head's mean score", tested("0 0.3 2"));

struct MeanShare : Prior {
  MeanShare()
      : Prior({"mean-share",
               "max(score, `prior_share` times the mean score of the head's candidates)",
               "kvsim, after DefensiveKV Algorithm 1", "prior_share"}) {}
  void apply(const Settings& settings, std::span<double> scores) const override {
    raise_to(mean_of(scores, settings.real(prior_share)), scores);
  }
};
const RegisterNone<Prior> none("no floor");
const Register<Prior, HeadMean, Constant, MeanShare> registered;

}  // namespace kvsim::stages::prior::prior
