#include "sim/stages/normalize/normalize.hpp"

#include "sim/stages/notes.hpp"
#include "sim/stages/parameter.hpp"

namespace kvsim::stages::normalize::normalize {
namespace {

const Declare normalize("normalize", "kind", "none",
                        "which sum of weights the scores are divided by");

void divide(std::span<double> scores, Range candidates, double divisor) {
  if (divisor == 0) return;
  for (int64_t i = candidates.begin; i < candidates.end; ++i)
    scores[static_cast<size_t>(i)] /= divisor;
}
double sum_of(std::span<const double> weights, Range candidates) {
  double sum = 0;
  for (int64_t i = candidates.begin; i < candidates.end; ++i)
    sum += weights[static_cast<size_t>(i)];
  return sum;
}

class NoDivision : public Normalize {
 public:
  NoDivision() : Normalize({"normalize", "none", "no division", ""}) {}
  bool changes_nothing() const override { return true; }
  void apply(const Table<double>&, Range, Table<double>&) const override {}
};
const Register<Normalize, NoDivision> none;

class HeadSum : public Normalize {
 public:
  HeadSum() : Normalize({"normalize", "head-sum", "sum of w over the head's candidates", ""}) {}
  void apply(const Table<double>& w, Range candidates, Table<double>& scores) const override {
    for (int64_t owner = 0; owner < scores.rows(); ++owner)
      divide(scores.row(owner), candidates, sum_of(w.row(owner), candidates));
  }
};
const Register<Normalize, HeadSum> head_sum;

class LayerSum : public Normalize {
 public:
  LayerSum()
      : Normalize({"normalize", "layer-sum", "sum of w over all heads and candidates",
                   "DefensiveKV Algorithm 2, line 11"}) {}
  void apply(const Table<double>& w, Range candidates, Table<double>& scores) const override {
    double total = 0;
    for (int64_t owner = 0; owner < w.rows(); ++owner) total += sum_of(w.row(owner), candidates);
    for (int64_t owner = 0; owner < scores.rows(); ++owner)
      divide(scores.row(owner), candidates, total);
  }
};
const Register<Normalize, LayerSum> layer_sum;
const DeclareNote layer_sum_note("normalize=layer-sum", "DefensiveKV Algorithm 2, line 11",
                                 "the sum over i: of a head, or of a layer",
                                 "of a layer: the text says \"layer-wise\", and it leaves the "
                                 "ranking inside a layer as Algorithm 1 has it");

class TokenHeads : public Normalize {
 public:
  TokenHeads()
      : Normalize({"normalize", "token-heads", "sum of the token's w over the heads",
                   "DefensiveKV code"}) {}
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
const Register<Normalize, TokenHeads> token_heads;
const DeclareNote token_heads_note(
    "normalize=token-heads", "DefensiveKV repository",
    "norms are divided by the sum over heads of the same token, which is not in the paper",
    "as coded");

/// KVCompose: what an entry is worth to the other heads counts, too.
class AddHeadMean : public Normalize {
 public:
  AddHeadMean()
      : Normalize({"normalize", "add-head-mean",
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
const Register<Normalize, AddHeadMean> add_head_mean;

}  // namespace
}  // namespace kvsim::stages::normalize::normalize
