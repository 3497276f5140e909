#include "sim/stages/stages.hpp"

namespace kvsim {

/// out[i] = (sum of in[i + first] .. in[i + last], added in this order) / divisor, for the i in
/// begin..end-1, all of whose columns exist. Several i at a time: one sum would wait for each of
/// its additions.
inline void moving_mean(std::span<const double> in, int64_t begin, int64_t end, int64_t first,
                        int64_t last, double divisor, std::span<double> out) {
  constexpr int64_t kTogether = 8;
  int64_t i = begin;
  for (; i + kTogether <= end; i += kTogether) {
    double sums[kTogether] = {};
    for (int64_t c = first; c <= last; ++c) {
      const double* const from = in.data() + i + c;
      for (int64_t x = 0; x < kTogether; ++x) sums[x] += from[x];
    }
    for (int64_t x = 0; x < kTogether; ++x) out[i + x] = sums[x] / divisor;
  }
  for (; i < end; ++i) {
    double sum = 0;
    for (int64_t c = first; c <= last; ++c) sum += in[i + c];
    out[i] = sum / divisor;
  }
}

}  // namespace kvsim

namespace kvsim::stages::smooth::pooling {

const Declare smooth("smooth", "kind", "none", "pooling over neighbouring candidates");
const Declare kernel("kernel", "odd >= 1 entries", "5", "width of the pooling", tested("1 3 7"));

/// (1/k) sum over the kernel, columns outside count as 0.
void average(int64_t k, std::span<const double> in, std::span<double> out) {
  const int64_t columns = std::ssize(in);
  const auto width = static_cast<double>(k);
  const int64_t inner = std::min(columns, k / 2), outer = std::max(inner, columns - k / 2);
  const auto at_edge = [&](int64_t i) {
    double sum = 0;
    for (int64_t c = std::max<int64_t>(0, i - k / 2); c < std::min(columns, i + k / 2 + 1); ++c)
      sum += in[c];
    out[i] = sum / width;
  };
  for (int64_t i = 0; i < inner; ++i) at_edge(i);
  moving_mean(in, inner, outer, -(k / 2), k / 2, width, out);
  for (int64_t i = outer; i < columns; ++i) at_edge(i);
}

struct Average : Smooth {
  Average()
      : Smooth({"avg", "average pooling; columns outside are 0 and still counted", "SnapKV",
                "kernel"}) {}
  void apply(const Settings& settings, const PositionDrift&, std::span<const double> in,
             std::span<double> out) const override {
    average(settings.count(kernel), in, out);
  }
};

struct AverageReplicate : Smooth {
  AverageReplicate()
      : Smooth(
            {"avg-replicate", "average pooling; the edge columns repeat outside", "", "kernel"}) {}
  void apply(const Settings& settings, const PositionDrift&, std::span<const double> in,
             std::span<double> out) const override {
    const int64_t k = settings.count(kernel);
    const int64_t last = std::ssize(in) - 1;
    for (int64_t i = 0; i <= last; ++i) {
      double sum = 0;
      for (int64_t c = i - k / 2; c <= i + k / 2; ++c) sum += in[std::clamp<int64_t>(c, 0, last)];
      out[i] = sum / static_cast<double>(k);
    }
  }
};

struct AverageRenormalized : Smooth {
  AverageRenormalized()
      : Smooth({"avg-renormalized", "`avg`, each row scaled back to its sum before",
                "DefensiveKV code", "kernel", "", "", "order=sag"}) {}
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

struct MaxPooling : Smooth {
  MaxPooling() : Smooth({"max", "maximum over the columns that exist", "AdaKV", "kernel"}) {}
  void apply(const Settings& settings, const PositionDrift&, std::span<const double> in,
             std::span<double> out) const override {
    const int64_t half = settings.count(kernel) / 2;
    const int64_t columns = std::ssize(in);
    for (int64_t i = 0; i < columns; ++i) {
      const auto begin = in.begin() + std::max<int64_t>(0, i - half);
      const auto end = in.begin() + std::min(columns, i + half + 1);
      out[i] = std::accumulate(
          begin, end, *begin,  // what is not a number stays so, for the check that follows
          [](double most, double x) { return x > most || std::isnan(x) ? x : most; });
    }
  }
};

const Declare aws_beta("aws_beta", "number > 0 tokens", "2000",
                       "drift per step of the adaptive window's width and shift",
                       tested("0.25 0.93 1 2 2.71 7.3"));
const Declare aws_min("aws_min", "odd >= 1 entries", "5", "least width of the adaptive window",
                      tested("1 3"));

/// A window that reaches further than this beyond the edges adds them as products: adding each
/// column by itself would take as long as the window is wide, which no drift bounds.
constexpr int64_t kAddedOneByOne = 4096;

/// Sum of in[first] .. in[last], where columns outside are those at the edge.
double sum_with_edges(int64_t first, int64_t last, std::span<const double> in) {
  const int64_t end = std::ssize(in) - 1;
  const int64_t before = std::clamp<int64_t>(-first, 0, last - first + 1);
  const int64_t after = std::clamp<int64_t>(last - end, 0, last - first + 1);
  double sum = 0;
  if (before + after <= kAddedOneByOne) {
    for (int64_t c = first; c <= last; ++c) sum += in[std::clamp<int64_t>(c, 0, end)];
    return sum;
  }
  if (before > 0) sum += static_cast<double>(before) * in.front();
  for (int64_t c = std::max<int64_t>(first, 0); c <= std::min(last, end); ++c) sum += in[c];
  if (after > 0) sum += static_cast<double>(after) * in.back();
  return sum;
}

/// Mean over a window of width W, shifted by gamma; edges replicate (ReST-KV Eq. 11-13).
void shifted_mean(int64_t width, int64_t shift, std::span<const double> in, std::span<double> out) {
  const int64_t last = std::ssize(in) - 1;
  const int64_t left = shift - width / 2, right = shift + width / 2;
  const int64_t inner = std::clamp<int64_t>(-left, 0, last + 1);
  const int64_t outer = std::clamp<int64_t>(last + 1 - right, inner, last + 1);
  const auto at_edge = [&](int64_t i) {
    out[i] = sum_with_edges(i + left, i + right, in) / static_cast<double>(width);
  };
  for (int64_t i = 0; i < inner; ++i) at_edge(i);
  moving_mean(in, inner, outer, left, right, static_cast<double>(width), out);
  for (int64_t i = outer; i <= last; ++i) at_edge(i);
}

/// W = max(least, 2 floor(|drift| / beta) + 1).
int64_t window_width(const Settings& settings, const PositionDrift& drift) {
  const int64_t steps = drift.floor_size_over(settings.decimal(aws_beta));
  return std::max<int64_t>(settings.count(aws_min), 2 * steps + 1);
}

struct AdaptiveWindow : Smooth {
  using Shift = int64_t (*)(const PositionDrift&, const Decimal& beta);
  AdaptiveWindow(const char* name, const char* meaning, const char* source, Drift drift,
                 Shift shift)
      : Smooth({name, meaning, source, "aws_beta aws_min"}), drift_(drift), shift_(shift) {}
  Drift drift() const override { return drift_; }
  void apply(const Settings& settings, const PositionDrift& drift, std::span<const double> in,
             std::span<double> out) const override {
    shifted_mean(window_width(settings, drift), shift_(drift, settings.decimal(aws_beta)), in, out);
  }

 private:
  Drift drift_;
  Shift shift_;
};

const bool windows_registered = [] {
  const auto add = [](const char* name, const char* meaning, const char* source, Drift drift,
                      AdaptiveWindow::Shift shift) {
    Kinds<Smooth>::add(std::make_unique<AdaptiveWindow>(name, meaning, source, drift, shift));
  };
  add("aws", "window as wide and as shifted as the best entries' drift asks", "ReST-KV Eq. 10-13",
      Drift::indicator, [](const PositionDrift& drift, const Decimal& beta) {
        return drift.floor_over(beta) + (drift.sign() < 0 ? 1 : 0);
      });
  add("aws-printed", "`aws` with the shift of Eq. 12 as printed, forward where entries drift back",
      "ReST-KV Eq. 12", Drift::indicator, [](const PositionDrift& drift, const Decimal& beta) {
        return drift.floor_size_over(beta) + (drift.sign() > 0 ? 0 : 1);
      });
  add("aws-code",
      "`aws` with the published code's choices (drift of the attention, shift 1 without "
      "drift)",
      "ReST-KV code", Drift::attention, [](const PositionDrift& drift, const Decimal& beta) {
        return drift.floor_over(beta) + (drift.sign() > 0 ? 0 : 1);
      });
  return true;
}();
const RegisterNone<Smooth> none("scores as they are");
const Register<Smooth, Average, AverageReplicate, AverageRenormalized, MaxPooling> registered;

}  // namespace kvsim::stages::smooth::pooling
