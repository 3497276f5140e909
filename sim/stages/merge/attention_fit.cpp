#include <Eigen/Cholesky>
#include <Eigen/Core>

#include "sim/stages/merge/merge.hpp"

namespace kvsim::stages::merge::attention_fit {

const Declare fit_ridge("fit_ridge", "number > 0", "0.000001",
                        "ridge of both fits, over the mean of the normal equations' diagonal",
                        tested("0.001"));

using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Floats = Eigen::Map<const Eigen::Matrix<float, -1, -1, Eigen::RowMajor>>;
constexpr double kLeast = 1e-12;  // of exp(bias), as coded

/// Least squares x of a x = y with a ridge.
Matrix solve(const Matrix& a, const Matrix& y, double ridge) {
  Matrix normal = a.transpose() * a;
  const double level = ridge * std::max(normal.diagonal().mean(), 1e-300);
  normal.diagonal().array() += level;
  return normal.llt().solve(a.transpose() * y);
}

/// exp(logit - the row's largest) of every reference query on every slot, and the sink's share.
struct Exponents {
  Matrix of_slots;       // [queries][slots]
  Eigen::VectorXd sink;  // [queries]
};

Exponents exponents(const MergeOwner& owner) {
  const SlotCache& cache = *owner.cache;
  const ReferenceQueries& reference = *owner.reference;
  Matrix keys(cache.size(), cache.key_dim());
  for (int64_t s = 0; s < cache.size(); ++s)
    for (int64_t c = 0; c < cache.key_dim(); ++c) keys(s, c) = static_cast<double>(cache.key(s)[c]);
  const Floats queries(reference.queries.data(), reference.queries.rows(), cache.key_dim());
  Exponents result{reference.scale * (queries.cast<double>() * keys.transpose()), {}};
  result.sink = Eigen::VectorXd::Zero(result.of_slots.rows());
  for (int64_t r = 0; r < result.of_slots.rows(); ++r) {
    const double sink = reference.sinks.empty()
                            ? -INFINITY
                            : static_cast<double>(reference.sinks[reference.head[r]]);
    const double largest = std::max(result.of_slots.row(r).maxCoeff(), sink);
    result.of_slots.row(r) = (result.of_slots.row(r).array() - largest).exp();
    result.sink(r) = std::exp(sink - largest);
  }
  return result;
}

/// Biases that give the kept keys the mass of all, then values that give the output of all.
void fit(MergeOwner& owner, double ridge) {
  SlotCache& cache = *owner.cache;
  std::vector<int64_t> kept;
  for (int64_t s = 0; s < cache.size(); ++s)
    if (!std::ranges::binary_search(owner.evicted, s)) kept.push_back(s);
  if (kept.empty() || owner.evicted.empty()) return;
  const Exponents all = exponents(owner);
  Matrix some = all.of_slots(Eigen::all, kept), values(cache.size(), cache.value_dim());
  for (int64_t s = 0; s < cache.size(); ++s)
    for (int64_t c = 0; c < cache.value_dim(); ++c)
      values(s, c) = static_cast<double>(cache.value(s)[c]);
  const Matrix mass = all.of_slots.rowwise().sum();
  const Matrix weight = solve(some, mass, ridge).cwiseMax(kLeast);
  some = some * weight.col(0).asDiagonal();
  const Eigen::VectorXd total = some.rowwise().sum() + all.sink;
  some = total.cwiseInverse().asDiagonal() * some;
  const Eigen::VectorXd whole = mass.col(0) + all.sink;
  const Matrix outputs = whole.cwiseInverse().asDiagonal() * (all.of_slots * values);
  const Matrix fitted = solve(some, outputs, ridge);
  for (size_t k = 0; k < kept.size(); ++k) {
    const auto row = static_cast<Eigen::Index>(k);
    for (int x = 0; x < cache.heads(); ++x) cache.set_bias(kept[k], x, std::log(weight(row, 0)));
    for (int64_t c = 0; c < cache.value_dim(); ++c)
      cache.value(kept[k])[c] = static_cast<float>(fitted(row, c));
  }
}

struct AttentionFit : Merge {
  AttentionFit()
      : Merge({"merge", "attention-fit",
               "keys stay; biases and values are fitted to what the reference queries see of all",
               "Attention Matching", "fit_ridge", "a layer without softcap"}) {}
  std::vector<std::string> votes() const override { return {"bias"}; }
  bool needs_linear_logits() const override { return true; }
  bool fits_queries() const override { return true; }

  void apply(MergeRequest& request) const override {
    const double ridge = request.settings->real(fit_ridge);
    parallel_for(std::ssize(request.owners), [&](int64_t o) { fit(request.owners[o], ridge); });
  }
};
const Register<Merge, AttentionFit> registered;

}  // namespace kvsim::stages::merge::attention_fit
