#include <Eigen/Core>
#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "sim/core/parallel.hpp"
#include "sim/stages/common_keys.hpp"
#include "sim/stages/indicator/indicator.hpp"

namespace kvsim::stages::indicator::lag {
namespace {

const Declare lag_block("lag_block", "count >= 2 entries", "128",
                        "tokens of a block that is compared with the next one", tested("2 5 7"));

/// Softmax over the tokens of a block of the standard deviation over channels, after each channel
/// was scaled by its minimum and maximum in the following block (LagKV Eq. 2-6).
std::vector<double> block_scores(const Tensor& tensor, int kv_head, int64_t begin, int64_t size) {
  const int64_t channels = tensor.dim(2);
  Table<float> x(2 * size, channels);
  tensor.read(kv_head, begin, begin + 2 * size, x.data());
  const auto token = [&](int64_t t) {
    return Eigen::Map<const Eigen::ArrayXf>(x.row(t).data(), channels).cast<double>();
  };
  Eigen::ArrayXd low = token(size), high = token(size);
  for (int64_t t = size + 1; t < 2 * size; ++t) {
    low = low.min(token(t));
    high = high.max(token(t));
  }
  const Eigen::ArrayXd divisor = (high == low).select(INFINITY, high - low);
  Eigen::ArrayXd scaled(channels);
  std::vector<double> score(static_cast<size_t>(size));
  for (int64_t t = 0; t < size; ++t) {
    scaled = (token(t) - low) / divisor;
    const double squares = (scaled - scaled.mean()).square().sum();
    score[static_cast<size_t>(t)] = channels > 1
                                        ? std::sqrt(squares / static_cast<double>(channels - 1))
                                        : 0;
  }
  const double top = *std::max_element(score.begin(), score.end());
  double sum = 0;
  for (double& s : score) sum += s = std::exp(s - top);
  for (double& s : score) s /= sum;
  return score;
}

/// (rank within the block, 0 = lowest, the more recent higher on a tie) / size.
void write_ranks(const std::vector<double>& score, std::span<double> out) {
  std::vector<size_t> order(score.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return score[a] < score[b]; });
  for (size_t rank = 0; rank < order.size(); ++rank)
    out[order[rank]] = static_cast<double>(rank) / static_cast<double>(order.size());
}

class Lag : public Indicator {
 public:
  Lag()
      : Indicator({"indicator",
                   "lag",
                   "rank of the spread of keys and values, scaled by the "
                   "following block",
                   "LagKV",
                   {"lag_block", "sinks"}}) {}
  Axes axes() const override { return Axes::entry; }

  Table<double> entries(const EntryRequest& request) const override {
    const int64_t n = request.work.entries();
    const int64_t sinks = request.settings.count(keys::sinks);
    const int64_t size = request.settings.count(lag_block);
    Table<double> x(request.owners(), n, 1.0);
    for (int64_t owner = 0; owner < x.rows(); ++owner) {
      auto out = x.row(owner);
      if (n < sinks + 2 * size) {
        std::iota(out.begin(), out.end(), 0.0);
        continue;
      }
      const LayerTrace& trace = request.work.trace();
      const int kv_head = request.kv_head(owner);
      const int64_t blocks = (n - sinks) / size;
      parallel_for(blocks - 1, [&](int64_t p) {
        const int64_t begin = sinks + p * size;
        std::vector<double> score = block_scores(trace.k, kv_head, begin, size);
        const std::vector<double> of_values = block_scores(trace.v, kv_head, begin, size);
        for (size_t t = 0; t < score.size(); ++t) score[t] = (score[t] + of_values[t]) / 2;
        write_ranks(score, out.subspan(static_cast<size_t>(begin), static_cast<size_t>(size)));
      });
    }
    return x;
  }
};
const Register<Indicator, Lag> lag;

}  // namespace
}  // namespace kvsim::stages::indicator::lag
