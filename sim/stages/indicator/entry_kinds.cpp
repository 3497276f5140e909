#include <cmath>

#include "sim/core/parallel.hpp"
#include "sim/core/random.hpp"
#include "sim/stages/indicator/indicator.hpp"
#include "sim/stages/parameter.hpp"

namespace kvsim::stages::indicator::entry_kinds {
namespace {

const Declare indicator("indicator", "kind", "attention", "what is measured of an entry");
const Declare scores("scores", "file or none", "none", "HDF5 file with layers/<l>/score");

/// An indicator that scores entries without any query.
class EntryIndicator : public Indicator {
 public:
  using Indicator::Indicator;
  Axes axes() const override { return Axes::entry; }
};

class Position : public EntryIndicator {
 public:
  Position()
      : EntryIndicator({"indicator", "position", "i: the newest entries", "StreamingLLM", {}}) {}
  bool is_position() const override { return true; }
  Table<double> entries(const EntryRequest& request) const override {
    Table<double> x(request.owners(), request.work.entries());
    for (int64_t owner = 0; owner < x.rows(); ++owner)
      for (int64_t i = 0; i < x.columns(); ++i) x(owner, i) = static_cast<double>(i);
    return x;
  }
  bool scores_slots() const override { return true; }
  double slot_score(const SlotToScore& slot) const override {
    return static_cast<double>(slot.position);
  }
};
const Register<Indicator, Position> position;

class Random : public EntryIndicator {
 public:
  Random()
      : EntryIndicator(
            {"indicator", "random", "uniform draw u(seed, layer, head, i)", "kvsim", {}}) {}
  Table<double> entries(const EntryRequest& request) const override {
    Table<double> x(request.owners(), request.work.entries());
    for (int64_t owner = 0; owner < x.rows(); ++owner)
      for (int64_t i = 0; i < x.columns(); ++i)
        x(owner, i) = uniform(request.seed, static_cast<uint64_t>(request.work.layer()),
                              static_cast<uint64_t>(owner), static_cast<uint64_t>(i));
    return x;
  }
  bool scores_slots() const override { return true; }
  double slot_score(const SlotToScore& slot) const override {
    return uniform(slot.seed, static_cast<uint64_t>(slot.layer), static_cast<uint64_t>(slot.owner),
                   static_cast<uint64_t>(slot.position));
  }
};
const Register<Indicator, Random> random;

/// sum of a[c] b[c] in float64. Eight sums side by side: one would wait for each of its additions.
template <class A>
double dot(std::span<const A> a, std::span<const float> b) {
  constexpr size_t kTogether = 8;
  double sums[kTogether] = {};
  size_t c = 0;
  for (; c + kTogether <= a.size(); c += kTogether)
    for (size_t x = 0; x < kTogether; ++x)
      sums[x] += static_cast<double>(a[c + x]) * static_cast<double>(b[c + x]);
  for (; c < a.size(); ++c) sums[0] += static_cast<double>(a[c]) * static_cast<double>(b[c]);
  return ((sums[0] + sums[4]) + (sums[1] + sums[5])) + ((sums[2] + sums[6]) + (sums[3] + sums[7]));
}

double norm(std::span<const float> x) { return std::sqrt(dot(x, x)); }

/// visit(i, k_i) for every prompt entry of a KV head in order; keys are widened some MB at a time.
template <class Visit>
void for_each_key(const LayerWork& work, int kv_head, const Visit& visit) {
  constexpr int64_t kRows = 4096;
  const Tensor& k = work.trace().k;
  Table<float> keys(std::min(kRows, work.entries()), k.dim(2));
  for (int64_t begin = 0; begin < work.entries(); begin += keys.rows()) {
    const int64_t end = std::min(work.entries(), begin + keys.rows());
    k.read(kv_head, begin, end, keys.data());
    for (int64_t i = begin; i < end; ++i) visit(static_cast<size_t>(i), keys.row(i - begin));
  }
}

/// Fills the rows of all owners that read a KV head with that head's scores.
template <class Score>
Table<double> per_kv_head(const EntryRequest& request, const Score& score) {
  Table<double> x(request.owners(), request.work.entries());
  const int64_t sharing = x.rows() / request.work.kv_heads();
  parallel_for(request.work.kv_heads(), [&](int64_t kv) {
    score(static_cast<int>(kv), x.row(kv * sharing));
    for (int64_t s = 1; s < sharing; ++s) {
      const auto from = x.row(kv * sharing);
      std::copy(from.begin(), from.end(), x.row(kv * sharing + s).begin());
    }
  });
  return x;
}

class KeyNorm : public EntryIndicator {
 public:
  KeyNorm() : EntryIndicator({"indicator", "key-norm", "-||k_i||_2", "Knorm", {}}) {}
  Table<double> entries(const EntryRequest& request) const override {
    return per_kv_head(request, [&](int kv, std::span<double> out) {
      for_each_key(request.work, kv,
                   [&](size_t i, std::span<const float> k) { out[i] = -norm(k); });
    });
  }
  bool scores_slots() const override { return true; }
  double slot_score(const SlotToScore& slot) const override { return -norm(slot.key); }
};
const Register<Indicator, KeyNorm> key_norm;

class KeyDifference : public EntryIndicator {
 public:
  KeyDifference()
      : EntryIndicator({"indicator",
                        "key-difference",
                        "-cos(k_i, mean direction of all prompt keys)",
                        "KeyDiff",
                        {}}) {}
  Table<double> entries(const EntryRequest& request) const override {
    return per_kv_head(request, [&](int kv, std::span<double> out) {
      const auto entries = static_cast<double>(request.work.entries());
      std::vector<double> anchor(static_cast<size_t>(request.work.trace().k.dim(2)), 0.0);
      std::vector<double> length(out.size());
      for_each_key(request.work, kv, [&](size_t i, std::span<const float> k) {
        const double size = length[i] = norm(k);
        if (size == 0) return;
        const double share = 1 / (size * entries);
        for (size_t c = 0; c < anchor.size(); ++c) anchor[c] += static_cast<double>(k[c]) * share;
      });
      double anchor_squares = 0;
      for (double a : anchor) anchor_squares += a * a;
      for_each_key(request.work, kv, [&](size_t i, std::span<const float> k) {
        const double sizes = length[i] * std::sqrt(anchor_squares);
        out[i] = sizes > 0 ? -dot(std::span<const double>(anchor), k) / sizes : 0;
      });
    });
  }
};
const Register<Indicator, KeyDifference> key_difference;

class External : public EntryIndicator {
 public:
  External()
      : EntryIndicator({"indicator",
                        "external",
                        "read from the HDF5 file `scores`",
                        "kvsim",
                        {"scores"},
                        "the file `scores`"}) {}
  void check_files(const Settings& settings, const SideFiles& files, int layer, int64_t owners,
                   int64_t entries) const override {
    if (!settings.is_none(scores)) files.scores(settings.text(scores), layer, owners, entries);
  }
  Table<double> entries(const EntryRequest& request) const override {
    return request.files.scores(request.settings.text(scores), request.work.layer(),
                                request.owners(), request.work.entries());
  }
};
const Register<Indicator, External> external;

}  // namespace
}  // namespace kvsim::stages::indicator::entry_kinds
