#include "sim/stages/stages.hpp"

namespace kvsim::keys {

const Declare weight_epsilon("weight_epsilon", "number >= 0 score", "0",
                             "added to the score before it is multiplied", tested("0.05"));

}  // namespace kvsim::keys

namespace kvsim::stages::weight::weight {

const Declare weight("weight", "kind", "none", "what scores are multiplied with");

/// ||v_i|| of the owner's KV head.
Table<double> value_weights(LayerWork& work, bool per_query_head, Norm norm) {
  const Table<float>& norms = work.value_norms(norm);
  Table<double> w(per_query_head ? work.query_heads() : work.kv_heads(), work.entries());
  for (int64_t owner = 0; owner < w.rows(); ++owner) {
    const auto from = norms.row(per_query_head ? owner / work.group_size() : owner);
    std::copy(from.begin(), from.end(), w.row(owner).begin());
  }
  return w;
}

/// ||v_i W^h||: of the query head itself, or the mean over the owner's group (CriticalKV).
Table<double> projected_weights(LayerWork& work, bool per_query_head, Norm norm) {
  const Table<float>& norms = work.projected_norms(norm);
  Table<double> w(per_query_head ? work.query_heads() : work.kv_heads(), work.entries());
  const int heads = per_query_head ? 1 : work.group_size();
  for (int64_t owner = 0; owner < w.rows(); ++owner) {
    auto out = w.row(owner);
    for (int x = 0; x < heads; ++x) {
      const auto from = norms.row(owner * heads + x);
      for (size_t i = 0; i < out.size(); ++i) out[i] += static_cast<double>(from[i]);
    }
    for (double& value : out) value /= heads;
  }
  return w;
}

template <class T>
double norm(std::span<const T> x, Norm norm) {
  double sum = 0;
  for (const T value : x) {
    const auto v = static_cast<double>(value);
    sum += norm == Norm::l1 ? std::fabs(v) : v * v;
  }
  return norm == Norm::l1 ? sum : std::sqrt(sum);
}

/// Mean over the heads of the norm of v W^h, one value at a time.
double projected_norm(std::span<const float> value, std::span<const Table<float>> outputs,
                      Norm kind) {
  double total = 0;
  for (const Table<float>& output : outputs) {
    std::vector<double> product(output.columns(), 0.0);
    for (int64_t c = 0; c < std::ssize(value); ++c) {
      const auto row = output.row(c);
      const auto v = static_cast<double>(value[c]);
      for (size_t x = 0; x < product.size(); ++x) product[x] += v * static_cast<double>(row[x]);
    }
    total += norm(std::span<const double>(product), kind);
  }
  return total / static_cast<double>(outputs.size());
}

template <bool kProjected, Norm kNorm>
struct NormWeight : Weight {
  using Weight::Weight;
  bool needs_outputs() const override { return kProjected; }
  double of_value(std::span<const float> value,
                  std::span<const Table<float>> outputs) const override {
    return kProjected ? projected_norm(value, outputs, kNorm) : norm(value, kNorm);
  }
  Table<double> weights(LayerWork& work, bool per_query_head) const override {
    return kProjected ? projected_weights(work, per_query_head, kNorm)
                      : value_weights(work, per_query_head, kNorm);
  }
};

/// One number for all entries of an owner: those of others are compared with it.
struct ValueL1Max : NormWeight<false, Norm::l1> {
  ValueL1Max()
      : NormWeight({"value-l1-max", "largest ||v_i||_1 of the owner's candidates", "LAVa",
                    "weight_epsilon"}) {}
  bool goes_on() const override { return false; }
  void settle(Range candidates, Table<double>& weights) const override {
    for (int64_t owner = 0; owner < weights.rows(); ++owner) {
      const auto row = weights.row(owner).subspan(candidates.begin, candidates.size());
      if (!row.empty()) std::ranges::fill(row, *std::ranges::max_element(row));
    }
  }
};
const RegisterNone<Weight> none("1");
const Register<Weight, ValueL1Max> registered;

template <bool kProjected, Norm kNorm>
void add(const char* name, const char* meaning, const char* source) {
  Kinds<Weight>::add(std::make_unique<NormWeight<kProjected, kNorm>>(
      KindInfo{name, meaning, source, "weight_epsilon"}));
}
const bool norms_registered = [] {
  add<false, Norm::l1>("value-l1", "||v_i||_1", "VATP");
  add<false, Norm::l2>("value-l2", "||v_i||_2", "ReST-KV Table 12");
  add<true, Norm::l1>("projected-l1", "mean over the group of ||v_i W^h||_1",
                      "CriticalKV; DefensiveKV 2");
  add<true, Norm::l2>("projected-l2", "mean over the group of ||v_i W^h||_2", "kvsim");
  return true;
}();

}  // namespace kvsim::stages::weight::weight
