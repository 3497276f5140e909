#include "bench/problem.hpp"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <numeric>
#include <random>

#include "sim/core/parallel.hpp"

namespace kvsim::bench {
namespace {

constexpr double kBudgets[] = {.01, .02, .03, .05, .08, .12, .18, .25, .35, .5};
constexpr int kPolicies = 8;

Tensor random_tensor(std::array<int64_t, 3> shape, double scale, std::mt19937& random) {
  Tensor tensor(ElementType::bfloat16, shape);
  std::normal_distribution<double> normal;
  std::vector<float> values(static_cast<size_t>(tensor.count()));
  for (float& x : values) x = static_cast<float>(scale * normal(random));
  narrow(tensor.type(), values.data(), tensor.count(), tensor.data());
  return tensor;
}

std::vector<float> widened(const Tensor& tensor) {
  std::vector<float> values(static_cast<size_t>(tensor.count()));
  widen(tensor.type(), tensor.data(), tensor.count(), values.data());
  return values;
}

/// Half of the policies keep anything, half prefer recent entries more or less strictly.
KeptChain chain(int policy, int64_t n, const std::vector<int64_t>& kept, std::mt19937& random) {
  constexpr double kNoise[] = {0, .05, .2, 1};
  std::normal_distribution<double> normal;
  std::vector<double> score(static_cast<size_t>(n));
  for (size_t i = 0; i < score.size(); ++i)
    score[i] = policy < 4 ? normal(random)
                          : static_cast<double>(i) / static_cast<double>(n) +
                                kNoise[policy - 4] * normal(random);
  KeptChain result;
  result.order.resize(static_cast<size_t>(n));
  std::iota(result.order.begin(), result.order.end(), 0u);
  std::stable_sort(result.order.begin(), result.order.end(),
                   [&](uint32_t a, uint32_t b) { return score[a] > score[b]; });
  result.end = kept;
  return result;
}

}  // namespace

Problem::Problem(const Shape& wanted, std::unique_ptr<Backend> chosen)
    : shape(wanted), backend(std::move(chosen)) {
  std::mt19937 random(1);
  info.num_layers = 1;
  info.layers = {0};
  info.num_query_heads = static_cast<int>(shape.group);
  info.num_kv_heads = 1;
  info.head_dim = shape.d;
  info.hidden_size = shape.d;
  info.prompt_len = shape.n;
  info.total_len = keys();
  for (int64_t s = 0; s < shape.steps; ++s) info.query_position.push_back(shape.n + s);
  layer.info = &info;
  layer.scale = 1.0 / std::sqrt(static_cast<double>(shape.d));
  layer.q = random_tensor({shape.group, shape.steps, shape.d}, 2.5, random);
  layer.k = random_tensor({1, keys(), shape.d}, 1, random);
  layer.v = random_tensor({1, keys(), shape.d}, 1, random);
  q = widened(layer.q);
  for (float& x : q) x *= static_cast<float>(layer.scale);
  k = widened(layer.k);
  v = widened(layer.v);
  for (const double f : kBudgets)
    kept.push_back(std::max<int64_t>(1, std::llround(f * static_cast<double>(shape.n))));
  request.chunk = shape.chunk;
  for (int p = 0; p < kPolicies; ++p) {
    ReplayPlan plan;
    plan.owners.push_back(chain(p, shape.n, kept, random));
    request.plans.push_back(std::move(plan));
  }
}

double Problem::unit() const {
  return 2.0 * static_cast<double>(rows()) * static_cast<double>(shape.n) *
         static_cast<double>(shape.d);
}

void Problem::write(const std::string& path) const {
  std::ofstream file(path, std::ios::binary);
  for (const std::vector<float>* values : {&q, &k, &v})
    file.write(reinterpret_cast<const char*>(values->data()),
               static_cast<std::streamsize>(values->size() * sizeof(float)));
  for (int p = 0; p < kPolicies; ++p)
    file.write(reinterpret_cast<const char*>(order(p).data()),
               static_cast<std::streamsize>(order(p).size() * sizeof(uint32_t)));
}

namespace {

/// Scores of one row in float64.
std::vector<double> exact_scores(const Problem& p, int64_t row) {
  const size_t d = static_cast<size_t>(p.shape.d), visible = static_cast<size_t>(p.visible(row));
  std::vector<double> scores(visible, 0.0);
  for (size_t i = 0; i < visible; ++i)
    for (size_t j = 0; j < d; ++j)
      scores[i] += static_cast<double>(p.q[static_cast<size_t>(row) * d + j]) *
                   static_cast<double>(p.k[i * d + j]);
  return scores;
}

/// Errors of one row, float64 from scores to outputs.
class RowCheck {
 public:
  RowCheck(const Problem& problem, const Outputs& outputs, int64_t row)
      : p_(problem), got_(outputs), row_(row), sum_(static_cast<size_t>(problem.shape.d)) {
    e_ = exact_scores(problem, row);
    const double top = *std::max_element(e_.begin(), e_.end());
    for (double& x : e_) total_ += x = std::exp(x - top);
  }

  double worst() {
    double result = 0;
    const int64_t budgets = static_cast<int64_t>(p_.kept.size());
    for (int64_t policy = 0; policy < kPolicies; ++policy) {
      start_later();
      int64_t at = 0;
      for (int64_t b = 0; b < budgets; ++b) {
        for (; at < p_.kept[static_cast<size_t>(b)]; ++at)
          add(p_.order(policy)[static_cast<size_t>(at)]);
        const int64_t set = policy * budgets + b;
        const double share = static_cast<double>(
            got_.mass[static_cast<size_t>(set * p_.rows() + row_)]);
        result = std::max({result, error(set), std::fabs(share / (mass_ / total_) - 1)});
      }
    }
    start_later();
    for (int64_t i = 0; i < p_.shape.n; ++i) add(static_cast<size_t>(i));
    return std::max(result, error(p_.sets()));
  }

 private:
  void start_later() {
    mass_ = 0;
    std::fill(sum_.begin(), sum_.end(), 0.0);
    for (size_t i = static_cast<size_t>(p_.shape.n); i < e_.size(); ++i) add(i);
  }
  void add(size_t key) {
    mass_ += e_[key];
    for (size_t j = 0; j < sum_.size(); ++j)
      sum_[j] += e_[key] * static_cast<double>(p_.v[key * sum_.size() + j]);
  }
  double error(int64_t set) const {
    double difference = 0, size = 0;
    const size_t at = static_cast<size_t>(set * p_.rows() + row_) * sum_.size();
    for (size_t j = 0; j < sum_.size(); ++j) {
      const double want = sum_[j] / mass_;
      difference += (static_cast<double>(got_.z[at + j]) - want) *
                    (static_cast<double>(got_.z[at + j]) - want);
      size += want * want;
    }
    return std::sqrt(difference / size);
  }

  const Problem& p_;
  const Outputs& got_;
  int64_t row_;
  std::vector<double> e_;  ///< exp-scores of the visible keys
  std::vector<double> sum_;
  double total_ = 0;
  double mass_ = 0;
};

double sums_error(const Problem& p, const Outputs& got) {
  constexpr int64_t kStride = 97;  // of the keys that are compared
  const int64_t kept = (p.shape.n + kStride - 1) / kStride;
  Table<double> rows(p.rows(), kept);
  parallel_for(p.rows(), [&](int64_t row) {
    std::vector<double> e = exact_scores(p, row);
    const double top = *std::max_element(e.begin(), e.end());
    double total = 0;
    for (double& x : e) total += x = std::exp(x - top);
    for (int64_t k = 0; k < kept; ++k) rows(row, k) = e[static_cast<size_t>(k * kStride)] / total;
  });
  double worst = 0;
  for (int64_t h = 0; h < p.shape.group; ++h)
    for (int64_t k = 0; k < kept; ++k) {
      double want = 0;
      for (int64_t s = 0; s < p.shape.steps; ++s) want += rows(h * p.shape.steps + s, k);
      const double sum = got.sums[static_cast<size_t>(h * p.shape.n + k * kStride)];
      worst = std::max(worst, std::fabs(sum / want - 1));
    }
  return worst;
}

}  // namespace

double largest_error(const Problem& problem, const Outputs& outputs) {
  if (!outputs.sums.empty()) return sums_error(problem, outputs);
  double worst = 0;
  for (int64_t row = 0; row < problem.rows(); row += 1 + problem.rows() / 7)
    worst = std::max(worst, RowCheck(problem, outputs, row).worst());
  return worst;
}

}  // namespace kvsim::bench
