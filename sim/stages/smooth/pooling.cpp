#include <algorithm>
#include <cmath>
#include <numeric>

#include "sim/stages/parameter.hpp"
#include "sim/stages/smooth/moving_mean.hpp"
#include "sim/stages/smooth/smooth.hpp"

namespace kvsim::stages::smooth::pooling {
namespace {

const Declare smooth("smooth", "kind", "none", "pooling over neighbouring candidates");
const Declare kernel("kernel", "odd >= 1 entries", "5", "width of the pooling", tested("1 3 7"));

class NoSmoothing : public Smooth {
 public:
  NoSmoothing() : Smooth({"smooth", "none", "scores as they are", "", {}}) {}
  bool changes_nothing() const override { return true; }
  void apply(const Settings&, const PositionDrift&, std::span<const double> in,
             std::span<double> out) const override {
    std::copy(in.begin(), in.end(), out.begin());
  }
};
const Register<Smooth, NoSmoothing> none;

/// (1/k) sum over the kernel, columns outside count as 0.
void average(int64_t k, std::span<const double> in, std::span<double> out) {
  const int64_t columns = static_cast<int64_t>(in.size());
  const auto width = static_cast<double>(k);
  const int64_t inner = std::min(columns, k / 2), outer = std::max(inner, columns - k / 2);
  const auto at_edge = [&](int64_t i) {
    double sum = 0;
    for (int64_t c = std::max<int64_t>(0, i - k / 2); c < std::min(columns, i + k / 2 + 1); ++c)
      sum += in[static_cast<size_t>(c)];
    out[static_cast<size_t>(i)] = sum / width;
  };
  for (int64_t i = 0; i < inner; ++i) at_edge(i);
  moving_mean(in, inner, outer, -(k / 2), k / 2, width, out);
  for (int64_t i = outer; i < columns; ++i) at_edge(i);
}

class Average : public Smooth {
 public:
  Average()
      : Smooth({"smooth",
                "avg",
                "average pooling; columns outside are 0 and still counted",
                "SnapKV",
                {"kernel"}}) {}
  void apply(const Settings& settings, const PositionDrift&, std::span<const double> in,
             std::span<double> out) const override {
    average(settings.count(kernel), in, out);
  }
};
const Register<Smooth, Average> avg;

class AverageReplicate : public Smooth {
 public:
  AverageReplicate()
      : Smooth({"smooth",
                "avg-replicate",
                "average pooling; the edge columns repeat outside",
                "",
                {"kernel"}}) {}
  void apply(const Settings& settings, const PositionDrift&, std::span<const double> in,
             std::span<double> out) const override {
    const int64_t k = settings.count(kernel);
    const int64_t last = static_cast<int64_t>(in.size()) - 1;
    for (int64_t i = 0; i <= last; ++i) {
      double sum = 0;
      for (int64_t c = i - k / 2; c <= i + k / 2; ++c)
        sum += in[static_cast<size_t>(std::clamp<int64_t>(c, 0, last))];
      out[static_cast<size_t>(i)] = sum / static_cast<double>(k);
    }
  }
};
const Register<Smooth, AverageReplicate> avg_replicate;

class AverageRenormalized : public Smooth {
 public:
  AverageRenormalized()
      : Smooth({"smooth",
                "avg-renormalized",
                "`avg`, each row scaled back to its sum before",
                "DefensiveKV code",
                {"kernel"},
                "",
                "",
                "order=sag"}) {}
  bool only_before_aggregate() const override { return true; }
  void apply(const Settings& settings, const PositionDrift&, std::span<const double> in,
             std::span<double> out) const override {
    average(settings.count(kernel), in, out);
    const double before = std::accumulate(in.begin(), in.end(), 0.0);
    const double after = std::accumulate(out.begin(), out.end(), 0.0);
    if (after == 0) return;
    for (double& value : out) value *= before / after;
  }
};
const Register<Smooth, AverageRenormalized> avg_renormalized;

class MaxPooling : public Smooth {
 public:
  MaxPooling()
      : Smooth({"smooth", "max", "maximum over the columns that exist", "AdaKV", {"kernel"}}) {}
  void apply(const Settings& settings, const PositionDrift&, std::span<const double> in,
             std::span<double> out) const override {
    const int64_t half = settings.count(kernel) / 2;
    const int64_t columns = static_cast<int64_t>(in.size());
    for (int64_t i = 0; i < columns; ++i) {
      const auto begin = in.begin() + std::max<int64_t>(0, i - half);
      const auto end = in.begin() + std::min(columns, i + half + 1);
      out[static_cast<size_t>(i)] = std::accumulate(
          begin, end, *begin,  // what is not a number stays so, for the check that follows
          [](double most, double x) { return x > most || std::isnan(x) ? x : most; });
    }
  }
};
const Register<Smooth, MaxPooling> max;

}  // namespace
}  // namespace kvsim::stages::smooth::pooling
