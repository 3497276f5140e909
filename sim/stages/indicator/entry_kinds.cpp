#include <Eigen/Core>

#include "sim/core/numbers.hpp"
#include "sim/stages/indicator/indicator.hpp"
#include "sim/stages/stages.hpp"

namespace kvsim::stages::indicator::entry_kinds {

const Declare indicator("indicator", "kind", "attention", "what is measured of an entry");
const Declare scores("scores", "file or none", "none", "HDF5 file with layers/<l>/score");

struct Position : EntryIndicator, ScoresByPosition, ScoresSlots {
  Position() : EntryIndicator({"position", "i: the newest entries", "StreamingLLM"}) {}
  Table<double> entries(const EntryRequest& request) const override {
    Table<double> x(request.owners(), request.work.entries());
    for (int64_t owner = 0; owner < x.rows(); ++owner)
      for (int64_t i = 0; i < x.columns(); ++i) x(owner, i) = static_cast<double>(i);
    return x;
  }
  double slot_score(const SlotToScore& slot) const override {
    return static_cast<double>(slot.position);
  }
};

struct Random : EntryIndicator, ScoresSlots {
  Random() : EntryIndicator({"random", "uniform draw u(seed, layer, head, i)", "kvsim"}) {}
  Table<double> entries(const EntryRequest& request) const override {
    Table<double> x(request.owners(), request.work.entries());
    for (int64_t owner = 0; owner < x.rows(); ++owner)
      for (int64_t i = 0; i < x.columns(); ++i)
        x(owner, i) = uniform(request.seed, static_cast<uint64_t>(request.work.layer()),
                              static_cast<uint64_t>(owner), static_cast<uint64_t>(i));
    return x;
  }
  double slot_score(const SlotToScore& slot) const override {
    return uniform(slot.seed, static_cast<uint64_t>(slot.layer), static_cast<uint64_t>(slot.owner),
                   static_cast<uint64_t>(slot.position));
  }
};

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
    for (int64_t i = begin; i < end; ++i) visit(i, keys.row(i - begin));
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

struct KeyNorm : EntryIndicator, ScoresSlots {
  KeyNorm() : EntryIndicator({"key-norm", "-||k_i||_2", "Knorm"}) {}
  Table<double> entries(const EntryRequest& request) const override {
    return per_kv_head(request, [&](int kv, std::span<double> out) {
      for_each_key(request.work, kv,
                   [&](size_t i, std::span<const float> k) { out[i] = -norm(k); });
    });
  }
  double slot_score(const SlotToScore& slot) const override { return -norm(slot.key); }
};

struct KeyDifference : EntryIndicator {
  KeyDifference()
      : EntryIndicator(
            {"key-difference", "-cos(k_i, mean direction of all prompt keys)", "KeyDiff"}) {}
  Table<double> entries(const EntryRequest& request) const override {
    return per_kv_head(request, [&](int kv, std::span<double> out) {
      const auto entries = static_cast<double>(request.work.entries());
      std::vector<double> anchor(request.work.trace().k.dim(2), 0.0);
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

struct External : EntryIndicator, ReadsFiles {
  External()
      : EntryIndicator({"external", "read from the HDF5 file `scores`", "kvsim", "scores",
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

constexpr int64_t kBlock = 16;  // entries over which squared norms are shared out

/// Share of an entry in the squared norms of its block; 0 where all of it are 0.
std::vector<double> block_shares(const Table<float>& vectors) {
  std::vector<double> share(vectors.rows(), 0.0);
  for (int64_t begin = 0; begin < vectors.rows(); begin += kBlock) {
    const int64_t end = std::min(vectors.rows(), begin + kBlock);
    double sum = 0;
    for (int64_t i = begin; i < end; ++i) {
      double& square = share[i];
      for (const float x : vectors.row(i)) square += static_cast<double>(x) * x;
      sum += square;
    }
    for (int64_t i = begin; i < end && sum > 0; ++i) share[i] /= sum;
  }
  return share;
}

struct Cur : EntryIndicator {
  Cur()
      : EntryIndicator({"cur",
                        "product of key's and value's shares in the squared norms of their block",
                        "CurDKV; kvpress CURPress"}) {}
  Table<double> entries(const EntryRequest& request) const override {
    Table<double> x(request.owners(), request.work.entries());
    parallel_for(x.rows(), [&](int64_t owner) {
      const int kv_head = request.kv_head(owner);
      const std::vector<double> keys = block_shares(request.work.keys(kv_head));
      const std::vector<double> values = block_shares(request.work.values(kv_head));
      double sum = 0;
      for (size_t i = 0; i < keys.size(); ++i) sum += x.row(owner)[i] = keys[i] * values[i];
      for (double& score : x.row(owner)) score = sum > 0 ? score / sum : 0;
    });
    return x;
  }
};

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
  std::vector<double> score(size);
  for (int64_t t = 0; t < size; ++t) {
    scaled = (token(t) - low) / divisor;
    const double squares = (scaled - scaled.mean()).square().sum();
    score[t] = channels > 1 ? std::sqrt(squares / static_cast<double>(channels - 1)) : 0;
  }
  softmax(score);
  return score;
}

/// (rank within the block, 0 = lowest, the more recent higher on a tie) / size.
void write_ranks(const std::vector<double>& score, std::span<double> out) {
  auto order = ascending<size_t>(std::ssize(score));
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return score[a] < score[b]; });
  for (size_t rank = 0; rank < order.size(); ++rank)
    out[order[rank]] = static_cast<double>(rank) / static_cast<double>(order.size());
}

struct Lag : EntryIndicator {
  Lag()
      : EntryIndicator({"lag",
                        "rank of the spread of keys and values, scaled by the following block",
                        "LagKV", "lag_block sinks"}) {}

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
        write_ranks(score, out.subspan(begin, size));
      });
    }
    return x;
  }
};

const Register<Indicator, Position, Random, KeyNorm, KeyDifference, External, Cur, Lag> registered;

}  // namespace kvsim::stages::indicator::entry_kinds
