#include <cmath>

#include "sim/core/random.hpp"
#include "sim/stages/indicator/indicator.hpp"
#include "sim/stages/parameter.hpp"

namespace kvsim {
namespace {

const Declare indicator{{.key = "indicator",
                         .place = 521,
                         .type = ValueType::kind,
                         .fallback = "attention",
                         .meaning = "what is measured of an entry"}};
const Declare scores{{.key = "scores",
                      .place = 523,
                      .type = ValueType::text,
                      .fallback = "none",
                      .meaning = "HDF5 file with layers/<l>/score",
                      .unit = "path",
                      .may_be_none = true}};

/// An indicator that scores entries without any query.
class EntryIndicator : public Indicator {
 public:
  using Indicator::Indicator;
  Axes axes() const override { return Axes::entry; }
};

class Position : public EntryIndicator {
 public:
  Position() : EntryIndicator({"indicator", "position", "i: the newest entries", "StreamingLLM",
                               {}}) {}
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
  Random() : EntryIndicator({"indicator", "random", "uniform draw u(seed, layer, head, i)",
                             "kvsim", {}}) {}
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

double norm(std::span<const float> x) {
  double squares = 0;
  for (float value : x) squares += static_cast<double>(value) * static_cast<double>(value);
  return std::sqrt(squares);
}

/// Fills the rows of all owners that read a KV head with that head's scores.
template <class Score>
Table<double> per_kv_head(const EntryRequest& request, const Score& score) {
  Table<double> x(request.owners(), request.work.entries());
  const int64_t sharing = x.rows() / request.work.kv_heads();
  for (int kv = 0; kv < request.work.kv_heads(); ++kv) {
    score(kv, x.row(kv * sharing));
    for (int64_t s = 1; s < sharing; ++s) {
      const auto from = x.row(kv * sharing);
      std::copy(from.begin(), from.end(), x.row(kv * sharing + s).begin());
    }
  }
  return x;
}

class KeyNorm : public EntryIndicator {
 public:
  KeyNorm() : EntryIndicator({"indicator", "key-norm", "-||k_i||_2", "Knorm", {}}) {}
  Table<double> entries(const EntryRequest& request) const override {
    return per_kv_head(request, [&](int kv, std::span<double> out) {
      const Table<float> keys = request.work.keys(kv);
      for (int64_t i = 0; i < keys.rows(); ++i) out[static_cast<size_t>(i)] = -norm(keys.row(i));
    });
  }
  bool scores_slots() const override { return true; }
  double slot_score(const SlotToScore& slot) const override { return -norm(slot.key); }
};
const Register<Indicator, KeyNorm> key_norm;

class KeyDifference : public EntryIndicator {
 public:
  KeyDifference()
      : EntryIndicator({"indicator", "key-difference",
                        "-cos(k_i, mean direction of all prompt keys)", "KeyDiff", {}}) {}
  Table<double> entries(const EntryRequest& request) const override {
    return per_kv_head(request, [&](int kv, std::span<double> out) {
      const Table<float> keys = request.work.keys(kv);
      std::vector<double> anchor(static_cast<size_t>(keys.columns()), 0.0);
      std::vector<double> length(static_cast<size_t>(keys.rows()));
      for (int64_t i = 0; i < keys.rows(); ++i) {
        const auto k = keys.row(i);
        const double size = length[static_cast<size_t>(i)] = norm(k);
        for (size_t c = 0; c < anchor.size() && size > 0; ++c)
          anchor[c] += static_cast<double>(k[c]) / size / static_cast<double>(keys.rows());
      }
      double anchor_squares = 0;
      for (double a : anchor) anchor_squares += a * a;
      for (int64_t i = 0; i < keys.rows(); ++i) {
        const auto k = keys.row(i);
        double dot = 0;
        for (size_t c = 0; c < anchor.size(); ++c) dot += anchor[c] * static_cast<double>(k[c]);
        const double sizes = length[static_cast<size_t>(i)] * std::sqrt(anchor_squares);
        out[static_cast<size_t>(i)] = sizes > 0 ? -dot / sizes : 0;
      }
    });
  }
};
const Register<Indicator, KeyDifference> key_difference;

class External : public EntryIndicator {
 public:
  External()
      : EntryIndicator({"indicator", "external", "read from the HDF5 file `scores`", "kvsim",
                        {"scores"}, "the file `scores`"}) {}
  Table<double> entries(const EntryRequest& request) const override {
    return request.files.scores(request.settings.text("scores"), request.work.layer(),
                                request.owners(), request.work.entries());
  }
};
const Register<Indicator, External> external;

}  // namespace
}  // namespace kvsim
