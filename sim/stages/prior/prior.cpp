#include "sim/stages/prior/prior.hpp"

#include <algorithm>

#include "sim/stages/notes.hpp"
#include "sim/stages/parameter.hpp"

namespace kvsim::stages::prior::prior {
namespace {

const Declare prior("prior", "kind", "none", "a floor under the scores");
const Declare prior_value("prior_value", "number >= 0 score", "0.0001", "the constant floor",
                          tested("0 0.01 0.1"));

class NoPrior : public Prior {
 public:
  NoPrior() : Prior({"prior", "none", "no floor", ""}) {}
  bool changes_nothing() const override { return true; }
  void apply(const Settings&, std::span<double>) const override {}
};
const Register<Prior, NoPrior> none;

class HeadMean : public Prior {
 public:
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
const Register<Prior, HeadMean> head_mean;
const DeclareNote head_mean_note(
    "prior=head-mean", "DefensiveKV Algorithm 1",
    "the mean is over n entries, of which those of the window are not scored",
    "over those that are scored: the window is kept anyhow");

class Constant : public Prior {
 public:
  Constant()
      : Prior({"prior", "constant", "max(score, `prior_value`)", "DefensiveKV, ablation",
               "prior_value"}) {}
  void apply(const Settings& settings, std::span<double> scores) const override {
    const double floor = settings.real(prior_value);
    for (double& s : scores) s = std::max(s, floor);
  }
};
const Register<Prior, Constant> constant;

const Declare prior_share("prior_share", "number >= 0", "0.5",
                          "the floor as a share of the head's mean score", tested("0 0.3 2"));

class MeanShare : public Prior {
 public:
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
const Register<Prior, MeanShare> mean_share;

}  // namespace
}  // namespace kvsim::stages::prior::prior
