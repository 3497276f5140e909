#include "sim/stages/stages.hpp"

namespace kvsim::stages::normalize::normalize {

const Declare normalize("normalize", "kind", "none",
                        "which sum of weights the scores are divided by");

void divide(std::span<double> scores, Range candidates, double divisor) {
  if (divisor == 0) return;
  for (int64_t i = candidates.begin; i < candidates.end; ++i) scores[i] /= divisor;
}
double sum_of(std::span<const double> weights, Range candidates) {
  double sum = 0;
  for (int64_t i = candidates.begin; i < candidates.end; ++i) sum += weights[i];
  return sum;
}

struct HeadSum : Normalize {
  HeadSum() : Normalize({"head-sum", "sum of w over the head's candidates", ""}) {}
  void apply(const Table<double>& w, Range candidates, Table<double>& scores) const override {
    for (int64_t owner = 0; owner < scores.rows(); ++owner)
      divide(scores.row(owner), candidates, sum_of(w.row(owner), candidates));
  }
};

struct LayerSum : Normalize {
  LayerSum()
      : Normalize({"layer-sum", "sum of w over all heads and candidates",
                   "DefensiveKV Algorithm 2, line 11"}) {}
  void apply(const Table<double>& w, Range candidates, Table<double>& scores) const override {
    double total = 0;
    for (int64_t owner = 0; owner < w.rows(); ++owner) total += sum_of(w.row(owner), candidates);
    for (int64_t owner = 0; owner < scores.rows(); ++owner)
      divide(scores.row(owner), candidates, total);
  }
};

struct TokenHeads : Normalize {
  TokenHeads()
      : Normalize({"token-heads", "sum of the token's w over the heads", "DefensiveKV code"}) {}
  bool per_entry() const override { return true; }
  void apply(const Table<double>& w, Range candidates, Table<double>& scores) const override {
    for (int64_t i = candidates.begin; i < candidates.end; ++i) {
      double total = 0;
      for (int64_t owner = 0; owner < w.rows(); ++owner) total += w(owner, i);
      for (int64_t owner = 0; owner < scores.rows() && total != 0; ++owner)
        scores(owner, i) /= total;
    }
  }
};

/// KVCompose: what an entry is worth to the other heads counts, too.
struct AddHeadMean : Normalize {
  AddHeadMean()
      : Normalize({"add-head-mean",
                   "no division; the mean of the entry's scores over the layer's heads is added",
                   "KVCompose"}) {}
  bool goes_on() const override { return false; }
  bool per_entry() const override { return true; }
  void apply(const Table<double>&, Range, Table<double>&) const override {}
  void finish(Range candidates, Table<double>& scores) const override {
    for (int64_t i = candidates.begin; i < candidates.end; ++i) {
      double mean = 0;
      for (int64_t owner = 0; owner < scores.rows(); ++owner) mean += scores(owner, i);
      mean /= static_cast<double>(scores.rows());
      for (int64_t owner = 0; owner < scores.rows(); ++owner) scores(owner, i) += mean;
    }
  }
};
const RegisterNone<Normalize> none("no division");
const Register<Normalize, HeadSum, LayerSum, TokenHeads, AddHeadMean> registered;

}  // namespace kvsim::stages::normalize::normalize
