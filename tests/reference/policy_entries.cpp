#include <algorithm>
#include <cmath>
#include <functional>

#include "sim/core/numbers.hpp"
#include "tests/reference/kinds.hpp"
#include "tests/reference/reference.hpp"
#include "tests/support/random_trace.hpp"

namespace kvsim::reference {
namespace {

Row key(const LayerTrace& layer, int kv_head, int64_t i) {
  Row k;
  for (int64_t x = 0; x < layer.info->head_dim; ++x)
    k.push_back(test::element(layer.k, kv_head, i, x));
  return k;
}

/// One side (keys or values) of LagKV for block p: softmax of the spread over the channels.
Row lag_block(const std::function<Row(int64_t)>& vector_of, int64_t first, int64_t b) {
  Row low, high;
  for (int64_t i = first + b; i < first + 2 * b; ++i) {
    const Row x = vector_of(i);
    if (low.empty()) low = high = x;
    for (size_t d = 0; d < x.size(); ++d)
      low[d] = std::min(low[d], x[d]), high[d] = std::max(high[d], x[d]);
  }
  Row spread;
  for (int64_t i = first; i < first + b; ++i) {
    Row x = vector_of(i);
    double mean = 0, squares = 0;
    for (size_t d = 0; d < x.size(); ++d) {
      x[d] = high[d] > low[d] ? (x[d] - low[d]) / (high[d] - low[d]) : 0;
      mean += x[d] / static_cast<double>(x.size());
    }
    for (const double y : x) squares += (y - mean) * (y - mean);
    spread.push_back(std::sqrt(squares / static_cast<double>(x.size() - 1)));
  }
  const double most = *std::max_element(spread.begin(), spread.end());
  double sum = 0;
  for (double& s : spread) sum += s = std::exp(s - most);
  for (double& s : spread) s /= sum;
  return spread;
}

Row lag(const PolicyCase& c, const LayerTrace& layer, int owner) {
  const int64_t n = c.n(), s = c.settings.count("sinks"), b = c.settings.count("lag_block");
  Row x(static_cast<size_t>(n), 1.0);
  if (n < s + 2 * b) {
    for (int64_t i = 0; i < n; ++i) x[static_cast<size_t>(i)] = static_cast<double>(i);
    return x;
  }
  const int kv_head = c.kv_head(owner);
  const int head = kv_head * c.info->group_size();
  for (int64_t p = 0; p + 1 < (n - s) / b; ++p) {
    const int64_t first = s + p * b;
    Row both = lag_block([&](int64_t i) { return key(layer, kv_head, i); }, first, b);
    const Row values = lag_block([&](int64_t i) { return value(layer, head, i); }, first, b);
    for (size_t i = 0; i < both.size(); ++i) both[i] = (both[i] + values[i]) / 2;
    for (size_t i = 0; i < both.size(); ++i) {
      int64_t rank = 0;  // entries of the block that stand below i
      for (size_t o = 0; o < both.size(); ++o)
        rank += both[o] < both[i] || (both[o] == both[i] && o < i) ? 1 : 0;
      x[static_cast<size_t>(first) + i] = static_cast<double>(rank) / static_cast<double>(b);
    }
  }
  return x;
}

/// Shares of |k|^2 and |v|^2 in their blocks, multiplied; brought to a sum of 1.
Row cur(const PolicyCase& c, const LayerTrace& layer, int owner) {
  const int64_t block = 16;
  const int kv_head = c.kv_head(owner), head = kv_head * c.info->group_size();
  const auto share = [&](int64_t i, const std::function<Row(int64_t)>& vector_of) {
    double sum = 0;
    for (int64_t x = i / block * block; x < std::min(c.n(), (i / block + 1) * block); ++x)
      sum += l2(vector_of(x)) * l2(vector_of(x));
    return sum > 0 ? l2(vector_of(i)) * l2(vector_of(i)) / sum : 0;
  };
  Row x;
  double sum = 0;
  for (int64_t i = 0; i < c.n(); ++i) {
    x.push_back(share(i, [&](int64_t at) { return key(layer, kv_head, at); }) *
                share(i, [&](int64_t at) { return value(layer, head, at); }));
    sum += x.back();
  }
  for (double& score : x) score = sum > 0 ? score / sum : 0;
  return x;
}

/// The same for every entry: `score` of its key.
IndicatorReference of_keys(double (*score)(const Row& key)) {
  return {.entries = [score](const PolicyCase& c, const LayerTrace& layer, int owner) {
    Row x;
    for (int64_t i = 0; i < c.n(); ++i) x.push_back(score(key(layer, c.kv_head(owner), i)));
    return x;
  }};
}

Row position(const PolicyCase& c, const LayerTrace&, int) {
  Row x;
  for (int64_t i = 0; i < c.n(); ++i) x.push_back(static_cast<double>(i));
  return x;
}

Row external(const PolicyCase& c, const LayerTrace& layer, int owner) {
  Row x;
  for (int64_t i = 0; i < c.n(); ++i) x.push_back(c.scores.at(layer.layer)(owner, i));
  return x;
}

Row drawn(const PolicyCase& c, const LayerTrace& layer, int owner) {
  Row x;
  for (int64_t i = 0; i < c.n(); ++i)
    x.push_back(uniform(c.seed, static_cast<uint64_t>(layer.layer), static_cast<uint64_t>(owner),
                        static_cast<uint64_t>(i)));
  return x;
}

/// Unlike the mean of the keys' directions.
Row key_difference(const PolicyCase& c, const LayerTrace& layer, int owner) {
  const int kv_head = c.kv_head(owner);
  Row mean;
  for (int64_t i = 0; i < c.n(); ++i) {
    Row k = key(layer, kv_head, i);
    const double norm = l2(k);
    for (double& x : k) x = norm > 0 ? x / norm / static_cast<double>(c.n()) : 0;
    mean.resize(k.size(), 0.0);
    for (size_t d = 0; d < k.size(); ++d) mean[d] += k[d];
  }
  Row x;
  for (int64_t i = 0; i < c.n(); ++i) {
    const Row k = key(layer, kv_head, i);
    double dot = 0;
    for (size_t d = 0; d < k.size(); ++d) dot += k[d] * mean[d];
    const double norms = l2(k) * l2(mean);
    x.push_back(norms > 0 ? -dot / norms : 0);
  }
  return x;
}

const References<IndicatorReference> of_entries{
    {"position", {.entries = position}},
    {"key-norm", of_keys([](const Row& k) { return -l2(k); })},
    {"key-difference", {.entries = key_difference}},
    {"external", {.entries = external}},
    {"random", {.entries = drawn}},
    {"lag", {.entries = lag}},
    {"cur", {.entries = cur}},
};

}  // namespace
}  // namespace kvsim::reference
