#include <Eigen/Core>
#include <numbers>

#include "sim/stages/allocate/allocate.hpp"
#include "sim/stages/stages.hpp"

namespace kvsim {
namespace {

constexpr double kEqualParts = 1e-9;  // fractional parts closer than this are a tie

/// Divides `total` over the open indices; Quota gives floor and fractional part of an index.
template <class Quota>
void largest_remainder(int64_t total, const std::vector<size_t>& open, const Quota& quota,
                       std::vector<int64_t>& shares) {
  std::vector<double> part(open.size());
  int64_t given = 0;
  for (size_t at = 0; at < open.size(); ++at) {
    const auto [whole, fraction] = quota(open[at]);
    shares[open[at]] = whole;
    part[at] = fraction;
    given += whole;
  }
  std::vector<bool> raised(open.size(), false);
  for (; given < total; ++given) {
    size_t best = open.size();
    for (size_t at = 0; at < open.size(); ++at)
      if (!raised[at] && (best == open.size() || part[at] > part[best] + kEqualParts)) best = at;
    if (best == open.size()) break;
    raised[best] = true;
    ++shares[open[best]];
  }
}

/// The common part of both forms: fixes shares at their caps and starts again with the rest.
/// `quota_of(total, open)` gives the Quota of a division.
template <class QuotaOf>
std::vector<int64_t> with_caps(int64_t total, const std::vector<int64_t>& caps,
                               const QuotaOf& quota_of) {
  std::vector<int64_t> shares(caps.size(), 0);
  auto open = ascending<size_t>(std::ssize(caps));
  while (!open.empty()) {
    largest_remainder(total, open, quota_of(total, open), shares);
    const auto full = std::stable_partition(open.begin(), open.end(),
                                            [&](size_t k) { return shares[k] <= caps[k]; });
    if (full == open.end()) break;
    for (auto k = full; k != open.end(); ++k) {
      shares[*k] = caps[*k];
      total -= caps[*k];
    }
    open.erase(full, open.end());
  }
  return shares;
}

}  // namespace

std::vector<int64_t> apportion(int64_t total, std::vector<double> weights, int64_t cap) {
  const std::vector<int64_t> caps(weights.size(), cap);
  return with_caps(total, caps, [&](int64_t rest, const std::vector<size_t>& open) {
    double sum = 0;
    for (size_t k : open) sum += weights[k];
    return [&weights, &open, rest, sum](size_t k) {
      const double share = sum > 0 ? weights[k] / sum : 1.0 / static_cast<double>(open.size());
      const double quota = static_cast<double>(rest) * share;
      // A quota that rounding left just below a whole number is that number.
      const double whole = std::floor(quota + kEqualParts);
      return std::pair{static_cast<int64_t>(whole), std::max(0.0, quota - whole)};
    };
  });
}

std::vector<int64_t> apportion_exact(int64_t total, const std::vector<int64_t>& weights,
                                     const std::vector<int64_t>& caps) {
  return with_caps(total, caps, [&](int64_t rest, const std::vector<size_t>& open) {
    int64_t sum = 0;
    for (size_t k : open) sum += weights[k];
    return [&weights, rest, sum, count = std::ssize(open)](size_t k) {
      const int64_t whole_sum = sum > 0 ? sum : count;
      const int64_t product = rest * (sum > 0 ? weights[k] : 1);
      return std::pair{product / whole_sum,
                       static_cast<double>(product % whole_sum) / static_cast<double>(whole_sum)};
    };
  });
}

int64_t product_total(const AllocationRequest& request, int64_t heads) {
  if (request.budget_is_count) return request.budget * heads;
  return request.ratio.floor_times(request.entries * heads);
}

namespace keys {

static bool of_layers(const Kind& group) {
  return dynamic_cast<const Group&>(group).span() == GroupSpan::layer;
}
const Declare nested("nested", "flag", "no", "a layer chooses among what the layer before kept",
                     always, only_with({"group", of_layers}), lets_nest_if(nests_at_default));

}  // namespace keys

}  // namespace kvsim

namespace kvsim::stages::allocate::by_layer {

const Declare allocate("allocate", "kind", "uniform", "how many entries each head may keep");
const Declare pyramid_beta("pyramid_beta", "number >= 1", "20",
                           "the last layer keeps 1/beta of the mean", tested("1 3.5"));
const Declare cosine_floor("cosine_floor", "number [0, 1]", "0.8",
                           "least value of the cosine profile", tested("0 0.3"));

Table<int64_t> same_for_owners(const AllocationRequest& request,
                               const std::vector<int64_t>& per_layer) {
  Table<int64_t> b(std::ssize(per_layer), request.owners);
  for (int64_t l = 0; l < b.rows(); ++l)
    for (int64_t& entry : b.row(l)) entry = per_layer[l];
  return b;
}

/// Applies a rule b(l) to every layer of the request.
template <class Rule>
Table<int64_t> by_layer(const AllocationRequest& request, const Rule& rule) {
  std::vector<int64_t> per_layer;
  for (const AllocationLayer& layer : request.layers) per_layer.push_back(rule(layer.layer));
  return same_for_owners(request, per_layer);
}

struct Uniform : Allocate {
  Uniform() : Allocate({"uniform", "B for every head", ""}) {}
  bool even() const override { return true; }
  bool nests(const Settings&) const override { return true; }
  Table<int64_t> budgets(const AllocationRequest& request) const override {
    return by_layer(request, [&](int) { return request.budget; });
  }
};

struct Everything : Allocate {
  Everything() : Allocate({"everything", "n for every head, whatever the budget", ""}) {}
  bool ignores_budget() const override { return true; }
  bool keeps_everything() const override { return true; }
  bool spends_budget() const override { return false; }
  Table<int64_t> budgets(const AllocationRequest& request) const override {
    return by_layer(request, [&](int) { return request.entries; });
  }
};

/// Linear from the lowest layer to the highest, as SnapKV's window on top (PyramidKV Eq. 3).
struct Pyramid : Allocate {
  Pyramid()
      : Allocate(
            {"pyramid", "linearly less with depth, window on top", "PyramidKV", "pyramid_beta"}) {}
  bool spends_budget() const override { return false; }
  Table<int64_t> budgets(const AllocationRequest& request) const override {
    const int64_t m = request.window;
    const int64_t n = request.entries;
    const int64_t layers = request.model_layers;
    const int64_t c = request.budget - m;
    if (c <= 0 || n < 2 * c || layers == 1)
      return by_layer(request, [&](int) { return request.budget; });
    int64_t low = request.settings->decimal(pyramid_beta).floor_divide(c);
    int64_t high = 2 * c - low;
    if (high >= n - m) {
      high = n - m;
      low = 2 * c - high;
    }
    const int64_t step = (high - low) / (layers - 1);
    return by_layer(request, [&](int l) { return m + high - l * step; });
  }
};

struct PyramidKvpress : Allocate {
  PyramidKvpress()
      : Allocate({"pyramid-kvpress", "kvpress's pyramid, window inside", "kvpress PyramidKVPress",
                  "pyramid_beta"}) {}
  bool spends_budget() const override { return false; }
  Table<int64_t> budgets(const AllocationRequest& request) const override {
    const bool like_kvpress = rounds_like_kvpress(*request.settings);
    const auto n = static_cast<double>(request.entries);
    const auto m = static_cast<double>(request.window);
    const double c = request.budget_is_count ? static_cast<double>(request.budget)
                     : like_kvpress          ? n * (1.0 - request.ratio.one_minus().value())
                                             : n * request.ratio.value();
    double low = c / request.settings->real(pyramid_beta);
    double high = 2 * c - low;
    if (high >= n - m) {
      high = n - m;
      low = 2 * c - high;
    }
    if (!(n >= high && high >= low && low >= m)) {
      const auto b = static_cast<int64_t>(std::nearbyint(c));
      return by_layer(request, [&](int) { return like_kvpress ? std::max<int64_t>(1, b) : b; });
    }
    const int layers = request.model_layers;
    const double step = layers > 1 ? (high - low) / (layers - 1) : 0;
    return by_layer(request,
                    [&](int l) { return static_cast<int64_t>(std::nearbyint(high - l * step)); });
  }
};

struct Cosine : Allocate {
  Cosine()
      : Allocate({"cosine", "cosine profile over depth with the exact total",
                  "PyramidInfer; KeepKV code", "cosine_floor"}) {}
  bool across_layers() const override { return true; }
  Table<int64_t> budgets(const AllocationRequest& request) const override {
    const double floor = request.settings->real(cosine_floor);
    std::vector<double> weights;
    for (const AllocationLayer& layer : request.layers) {
      const double angle = std::numbers::pi * layer.layer / request.model_layers;
      weights.push_back(0.2 + 0.8 * (floor + (1 - floor) * (1 + std::cos(angle)) / 2));
    }
    const auto total = std::ssize(weights) * request.budget;
    return same_for_owners(request, apportion(total, weights, request.entries));
  }
};

/// Variance over entries of the attention that each query head gave them in all (D2O Eq. 4).
struct Concentration : RowStatistic {
  bool takes_sums() const override { return true; }
  void add_sum(std::span<const double> sum) override {
    const auto columns = static_cast<double>(sum.size());
    double mean = 0;
    for (const double x : sum) mean += x / columns;
    double squares = 0;
    for (const double x : sum) squares += (x - mean) * (x - mean);
    variance_.push_back(columns > 1 ? squares / (columns - 1) : 0);
  }
  std::vector<double> finish() override {
    const auto [low, high] = std::minmax_element(variance_.begin(), variance_.end());
    double mean = 0;
    for (double v : variance_)
      mean += (v - *low) / (*high - *low + 1e-6) / static_cast<double>(variance_.size());
    return {mean};
  }

 private:
  std::vector<double> variance_;  // per query head
};

struct D2o : Allocate {
  D2o() : Allocate({"d2o", "layers by how evenly their attention is spread", "D2O Eq. 4-5"}) {}
  bool needs_scores() const override { return true; }
  bool across_layers() const override { return true; }
  bool watches() const override { return true; }
  std::unique_ptr<RowStatistic> statistic(const Settings&, const TraceInfo&, int64_t,
                                          Range) const override {
    return std::make_unique<Concentration>();
  }
  Table<int64_t> budgets(const AllocationRequest& request) const override {
    std::vector<double> weights;
    for (const AllocationLayer& layer : request.layers)
      weights.push_back(std::exp(-layer.scored->statistic.at(0)));
    const auto total = std::ssize(weights) * request.budget;
    return same_for_owners(request, apportion(total, weights, request.entries));
  }
};

const Declare cake_tau1("cake_tau1", "number > 0", "1.6", "temperature of the attention's entropy",
                        tested("0.7"));
const Declare cake_tau2("cake_tau2", "number > 0", "0.6",
                        "temperature of the attention's variance over time", tested("2"));

/// Entropy of the attention on the candidates and its variance over the observing queries.
struct Preference : RowStatistic {
  void add(const AttentionBlock& block, int64_t row_begin, Range candidates) override {
    if (block.kv_head != kv_head_) {
      close();
      kv_head_ = block.kv_head;
      const auto columns = static_cast<size_t>(block.heads * candidates.size());
      mean_.assign(columns, 0.0);
      squares_.assign(columns, 0.0);
    }
    rows_ = row_begin + block.rows;
    std::vector<double> entropy(block.heads, 0.0);
    parallel_for(block.heads, [&](int64_t head) {
      for (int64_t r = 0; r < block.rows; ++r)
        entropy[head] += add_row(block.attention_row(static_cast<int>(head), r) + candidates.begin,
                                 head, row_begin + r + 1, candidates.size());
    });
    for (const double of_head : entropy) entropy_ += of_head;
  }
  std::vector<double> finish() override {
    close();
    return {entropy_, variance_};
  }

 private:
  /// Row number `count` of a head, from 1; returns its entropy.
  double add_row(const float* a, int64_t head, int64_t count, int64_t columns) {
    double* const mean = mean_.data() + head * columns;
    double* const squares = squares_.data() + head * columns;
    for (int64_t c = 0; c < columns; ++c) {
      const auto x = static_cast<double>(a[c]);
      const double change = x - mean[c];
      mean[c] += change / static_cast<double>(count);
      squares[c] += change * (x - mean[c]);
    }
    const auto x = Eigen::Map<const Eigen::ArrayXf>(a, columns).cast<double>();
    return -(x * (x + 1e-10).log()).sum();
  }
  void close() {
    if (kv_head_ >= 0 && rows_ > 1)
      for (double s : squares_) variance_ += s / static_cast<double>(rows_ - 1);
    kv_head_ = -1;
  }
  int kv_head_ = -1;
  int64_t rows_ = 0;
  double entropy_ = 0;
  double variance_ = 0;
  std::vector<double> mean_;  // [heads][candidates] of the KV head at work
  std::vector<double> squares_;
};

struct Cake : Allocate {
  Cake()
      : Allocate({"cake", "layers by entropy and variance of their attention", "CAKE Eq. 5",
                  "cake_tau1 cake_tau2"}) {}
  bool needs_scores() const override { return true; }
  bool across_layers() const override { return true; }
  bool watches() const override { return true; }
  std::unique_ptr<RowStatistic> statistic(const Settings&, const TraceInfo&, int64_t,
                                          Range) const override {
    return std::make_unique<Preference>();
  }
  Table<int64_t> budgets(const AllocationRequest& request) const override {
    const int64_t m = request.window;
    if (request.budget <= m) return by_layer(request, [&](int) { return request.budget; });
    std::vector<double> preference;
    for (const AllocationLayer& layer : request.layers) {
      const std::vector<double>& seen = layer.scored->statistic;
      preference.push_back(
          std::pow(std::max(0.0, seen.at(0)), 1 / request.settings->real(cake_tau1)) *
          std::pow(seen.at(1), 1 / request.settings->real(cake_tau2)));
    }
    const auto total = std::ssize(request.layers) * (request.budget - m);
    std::vector<int64_t> shares = apportion(total, preference, request.entries - m);
    for (int64_t& share : shares) share += m;
    return same_for_owners(request, shares);
  }
};
const Register<Allocate, Uniform, Everything, Pyramid, PyramidKvpress, Cosine, D2o, Cake>
    registered;

}  // namespace kvsim::stages::allocate::by_layer
