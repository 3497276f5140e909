#include "sim/stages/shape/unite.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "sim/stages/parameter.hpp"

namespace kvsim::stages::shape::unite {
namespace {

const Declare key("union", "kind", "none", "one set for all heads of a layer");

class NoUnion : public Union {
 public:
  NoUnion() : Union({"union", "none", "every head has its own set", "", {}}) {}
  bool unites() const override { return false; }
  void apply(Range, Table<double>&) const override {}
};
const Register<Union, NoUnion> none;

/// One number of the heads' scores of an entry.
class Fold : public Union {
 public:
  using Union::Union;
  virtual double of(const std::vector<double>& heads) const = 0;
  void apply(Range candidates, Table<double>& scores) const override {
    std::vector<double> heads(static_cast<size_t>(scores.rows()));
    for (int64_t i = candidates.begin; i < candidates.end; ++i) {
      for (size_t owner = 0; owner < heads.size(); ++owner)
        heads[owner] = scores(static_cast<int64_t>(owner), i);
      const double one = of(heads);
      for (int64_t owner = 0; owner < scores.rows(); ++owner) scores(owner, i) = one;
    }
  }
};

class Mean : public Fold {
 public:
  Mean() : Fold({"union", "mean", "by the mean over heads", "OpenVINO; KVCompose", {}}) {}
  double of(const std::vector<double>& heads) const override {
    return std::accumulate(heads.begin(), heads.end(), 0.0) / static_cast<double>(heads.size());
  }
};
const Register<Union, Mean> mean;

class Max : public Fold {
 public:
  Max() : Fold({"union", "max", "by the largest over heads", "kvsim", {}}) {}
  double of(const std::vector<double>& heads) const override {
    return *std::ranges::max_element(heads);
  }
};
const Register<Union, Max> max;

class RootMeanSquare : public Fold {
 public:
  RootMeanSquare()
      : Fold({"union",
              "root-mean-square",
              "by the root of the mean square over heads",
              "kvsim",
              {}}) {}
  double of(const std::vector<double>& heads) const override {
    double squares = 0;
    for (const double s : heads) squares += s * s;
    return std::sqrt(squares / static_cast<double>(heads.size()));
  }
};
const Register<Union, RootMeanSquare> root_mean_square;

/// The union of what heads choose: their best entries, then their second best ones, ...
class BestRank : public Union {
 public:
  BestRank()
      : Union({"union",
               "best-rank",
               "the best entries of every head, then the second best ones",
               "kvsim",
               {}}) {}
  void apply(Range candidates, Table<double>& scores) const override {
    std::vector<double> best(static_cast<size_t>(candidates.size()),
                             -static_cast<double>(candidates.size()));
    std::vector<int64_t> order(best.size());
    for (int64_t owner = 0; owner < scores.rows(); ++owner) {
      std::iota(order.begin(), order.end(), candidates.begin);
      std::ranges::sort(order, [&](int64_t a, int64_t b) {
        return scores(owner, a) != scores(owner, b) ? scores(owner, a) > scores(owner, b) : a > b;
      });
      for (size_t rank = 0; rank < order.size(); ++rank) {
        double& mine = best[static_cast<size_t>(order[rank] - candidates.begin)];
        mine = std::max(mine, -static_cast<double>(rank));
      }
    }
    for (int64_t owner = 0; owner < scores.rows(); ++owner)
      std::ranges::copy(best, scores.row(owner).begin() + candidates.begin);
  }
};
const Register<Union, BestRank> best_rank;

}  // namespace
}  // namespace kvsim::stages::shape::unite
