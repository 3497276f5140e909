// The triangle that stands for W_O where outputs of many sets go through it.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>

#include "sim/backend/cpu/factors.hpp"
#include "tests/reference/reference.hpp"
#include "tests/sim/backend/backends.hpp"
#include "tests/support/random_trace.hpp"

namespace kvsim::test::joint_factor {
namespace {

constexpr double kNormTolerance = 3e-6;    // as of all norms: test_norms.cpp
constexpr double kFactorTolerance = 4e-7;  // of its products by |w_i| |w_j|: L is float32

struct Case {
  int heads;
  int64_t dv, hidden;
  ElementType type;
};

// K = heads * dv: less than a panel of 48 rows; no multiple of it, nor of a vector; D = K; more
// columns than one run of 512; D a multiple of a vector, not of a group of rows.
const std::vector<Case> kCases = {{2, 16, 40, ElementType::float32},
                                  {3, 35, 140, ElementType::bfloat16},
                                  {6, 32, 192, ElementType::float16},
                                  {5, 112, 600, ElementType::float32},
                                  {4, 16, 64, ElementType::float32}};

std::unique_ptr<RandomTrace> make(const Case& c, int64_t later = 90) {
  return random_trace({.query_heads = c.heads,
                       .kv_heads = 1,
                       .dv = c.dv,
                       .hidden = c.hidden,
                       .prompt = 4,
                       .later = later,
                       .type = c.type});
}

/// Row i of W, all heads one below the other.
std::vector<double> row_of_w(const LayerTrace& layer, int64_t i) {
  const int64_t dv = layer.value_dim();
  std::vector<double> row;
  for (int64_t c = 0; c < layer.wo.dim(2); ++c)
    row.push_back(static_cast<double>(element(layer.wo, i / dv, i % dv, c)));
  return row;
}

double dot(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

/// Projections of two sets at some of the steps, beside float64.
void check_projections(const LayerTrace& layer) {
  const int64_t heads = layer.info->num_query_heads, dv = layer.value_dim(), stride = 300;
  std::vector<int64_t> steps;  // more rows than one task takes
  for (int64_t s = 1; s < stride; s += s % 7 == 0 ? 2 : 1) steps.push_back(s);
  std::vector<std::vector<float>> sets(2);
  std::vector<double> wanted;
  for (uint64_t x = 0; x < sets.size(); ++x) {
    for (int64_t i = 0; i < heads * stride * dv; ++i)
      sets[x].push_back(static_cast<float>(normal(x, 11, static_cast<uint64_t>(i))));
    for (const int64_t step : steps) {
      std::vector<double> sum(static_cast<size_t>(layer.wo.dim(2)), 0.0);
      for (int64_t h = 0; h < heads; ++h) {
        const auto from = sets[x].begin() + (h * stride + step) * dv;
        const auto part = reference::project(layer, static_cast<int>(h), {from, from + dv});
        for (size_t c = 0; c < sum.size(); ++c) sum[c] += part[c];
      }
      wanted.push_back(reference::l2(sum));
    }
  }
  const std::vector<const float*> x = {sets[0].data(), sets[1].data()};
  for (auto& [name, backend] : all_backends()) {
    CAPTURE(name);
    std::vector<double> norms(wanted.size());
    backend->projection(layer)->norms(x, stride, steps, norms.data());
    double worst = 0;
    for (size_t i = 0; i < norms.size(); ++i)
      worst = std::max(worst, std::fabs(norms[i] / wanted[i] - 1));
    CHECK(worst < kNormTolerance);
  }
}

}  // namespace

TEST_CASE("the joint factor's products are those of W_O's rows", "[backend][norms]") {
  for (const Case& c : kCases) {
    CAPTURE(c.heads, c.dv, c.hidden);
    const auto trace = make(c);
    const int64_t size = c.heads * c.dv;
    for (const std::string& isa : instruction_sets()) {
      CAPTURE(isa);
      const ForcedIsa forced(isa);
      Scratch<float> memory;
      JointFactor factor;
      factor.make(choose_kernels(), trace->layer, memory);
      REQUIRE(factor.width() == size);
      std::vector<std::vector<double>> rows, rows_of_w;
      bool triangular = true;
      for (int64_t i = 0; i < size; ++i) {
        std::vector<double>& row = rows.emplace_back(padded(size, JointFactor::kPanel), 0.0);
        for (int64_t at = 0; at <= i; at += JointFactor::kPanel)
          std::copy_n(factor.panel(at) + (i - at) * JointFactor::kPanel, JointFactor::kPanel,
                      row.begin() + at);
        triangular = triangular &&
                     std::all_of(row.begin() + i + 1, row.end(), [](double x) { return x == 0; });
        rows_of_w.push_back(row_of_w(trace->layer, i));
      }
      double worst = 0;
      for (size_t i = 0; i < rows.size(); i += 1 + i % 3)
        for (size_t j = 0; j <= i; j += 1 + j % 2) {
          const auto &w = rows_of_w[i], &v = rows_of_w[j];
          worst = std::max(worst, std::fabs(dot(rows[i], rows[j]) - dot(w, v)) /
                                      std::sqrt(dot(w, w) * dot(v, v)));
        }
      CHECK(worst < kFactorTolerance);
      CHECK(triangular);
    }
  }
}

TEST_CASE("projections through the joint factor agree with float64", "[backend][norms]") {
  for (const Case& c : kCases) {
    CAPTURE(c.heads, c.dv, c.hidden);
    const auto trace = make(c);
    REQUIRE(JointFactor::pays(trace->layer));
    check_projections(trace->layer);
  }
}

TEST_CASE("the joint factor stands for rows of W_O that repeat others or are zero",
          "[backend][norms]") {
  const auto trace = make(kCases[1]);
  for (int64_t c = 0; c < kCases[1].hidden; ++c) {
    set_element(trace->layer.wo, 2, 7, c, element(trace->layer.wo, 0, 3, c));
    set_element(trace->layer.wo, 0, 5, c, 0.0);
  }
  REQUIRE(JointFactor::pays(trace->layer));
  check_projections(trace->layer);
}

TEST_CASE("the joint factor is for many steps and rows that are no longer than wide",
          "[backend][norms]") {
  CHECK_FALSE(JointFactor::pays(make(kCases[2], 2)->layer));
  CHECK_FALSE(JointFactor::pays(make({6, 32, 191, ElementType::float32})->layer));
  CHECK_FALSE(JointFactor::pays(make({13, 128, 2000, ElementType::float32})->layer));
}

}  // namespace kvsim::test::joint_factor
