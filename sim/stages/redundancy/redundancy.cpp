#include <Eigen/Core>

#include "sim/core/numbers.hpp"
#include "sim/stages/stages.hpp"

namespace kvsim::stages::redundancy::redundancy {

const Declare redundancy("redundancy", "kind", "none",
                         "what other entries say, too, lowers a score");
const Declare redundancy_mix("redundancy_mix", "number [0, 1]", "0.1",
                             "share of the score beside redundancy", tested("0 0.5 1"));
const Declare redundancy_threshold("redundancy_threshold", "number [0, 1]", "0.5",
                                   "cosine above which a key says what another says",
                                   tested("0 0.2"));

struct KeyCosine : Redundancy {
  explicit KeyCosine(KindInfo info) : Redundancy(std::move(info)) {}
  KeyCosine()
      : Redundancy({"key-cosine",
                    "softmax of the mean cosine with the other keys; a key counts not for the "
                    "newest that is like it",
                    "R-KV repository", "redundancy_mix redundancy_threshold"}) {}

  std::vector<double> of_keys(const Settings& settings, std::span<const float> keys,
                              int64_t dim) const override {
    using Rows = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
    constexpr int64_t kTogether = 128;  // rows of cosines at a time
    const int64_t entries = std::ssize(keys) / dim;
    const double threshold = settings.real(redundancy_threshold);
    Rows unit = Eigen::Map<const Eigen::Matrix<float, -1, -1, Eigen::RowMajor>>(keys.data(),
                                                                                entries, dim)
                    .cast<double>();
    for (int64_t i = 0; i < entries; ++i) unit.row(i) /= unit.row(i).norm() + kTiny;
    std::vector<double> mean(entries, 0.0);
    for (int64_t begin = 0; begin < entries; begin += kTogether) {
      const int64_t count = std::min(kTogether, entries - begin);
      Rows cosine = unit.middleRows(begin, count) * unit.transpose();
      for (int64_t r = 0; r < count; ++r) {
        cosine(r, begin + r) = 0;
        int64_t newest = entries - 1;
        while (newest > 0 && !(cosine(r, newest) > threshold)) --newest;
        if (drops_always() || cosine(r, newest) > threshold) cosine(r, newest) = 0;
        for (int64_t i = 0; i < entries; ++i)
          mean[i] += cosine(r, i) / static_cast<double>(entries);
      }
    }
    softmax(mean);
    return mean;
  }
  double mix(const Settings& settings, double score, double said) const override {
    const double share = settings.real(redundancy_mix);
    return (share > 0 ? share * score : 0) - (1 - share) * said;
  }

 protected:
  /// Does a row without a key that is like it leave out the first entry?
  virtual bool drops_always() const { return true; }

 private:
  static constexpr double kTiny = 1e-8;  // a zero key has cosine 0
};

struct KeyCosineScaled : KeyCosine {
  KeyCosineScaled()
      : KeyCosine({"key-cosine-scaled",
                   "the same over the head's largest; a key that is like no other leaves out none",
                   "G-KV repository", "redundancy_mix redundancy_threshold"}) {}
  void level(std::span<double> of_entries) const override {
    const double largest = of_entries.empty() ? 0 : *std::ranges::max_element(of_entries);
    for (double& one : of_entries) one /= largest;
  }

 protected:
  bool drops_always() const override { return false; }
};
const RegisterNone<Redundancy> none("entries are scored alone");
const Register<Redundancy, KeyCosine, KeyCosineScaled> registered;

}  // namespace kvsim::stages::redundancy::redundancy
