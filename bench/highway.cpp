// Our kernels for x86-64-v3 beside the same loops written with Highway: medians of the ratios of
// processor time within a round, one thread. Results are compared first.
// clang-format off
#define KVSIM_ISA v3
#define KVSIM_ISA_NAME "v3"
#include "sim/backend/cpu/kernels.inc"
// clang-format on
#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <functional>
#include <random>
#include <vector>

namespace {

namespace hn = hwy::HWY_NAMESPACE;
const hn::ScalableTag<float> kTag;
using Vector = hn::Vec<decltype(kTag)>;
constexpr int64_t kWide = 8, kRound = 6;  // lanes; rows or keys of a kernel
static_assert(HWY_TARGET == HWY_AVX2, "Highway asks for -maes beside x86-64-v3");

/// c[6][16] (+)= sum over `depth` of a[j * a_step + r * a_row] * b[j * ldb + 0..15].
KVSIM_INLINE void micro(const float* a, int64_t a_step, int64_t a_row, const float* b, int64_t ldb,
                        int64_t depth, float* c, int64_t ldc, bool add) {
  Vector sum[kRound][2];
  KVSIM_UNROLL
  for (auto& row : sum) row[0] = row[1] = hn::Zero(kTag);
  for (int64_t j = 0; j < depth; ++j) {
    const Vector x0 = hn::LoadU(kTag, b + j * ldb), x1 = hn::LoadU(kTag, b + j * ldb + kWide);
    KVSIM_UNROLL
    for (int64_t r = 0; r < kRound; ++r) {
      const Vector all = hn::Set(kTag, a[j * a_step + r * a_row]);
      sum[r][0] = hn::MulAdd(all, x0, sum[r][0]);
      sum[r][1] = hn::MulAdd(all, x1, sum[r][1]);
    }
  }
  KVSIM_UNROLL
  for (int64_t r = 0; r < kRound; ++r) {
    KVSIM_UNROLL
    for (int v = 0; v < 2; ++v) {
      float* const to = c + r * ldc + v * kWide;
      hn::StoreU(add ? hn::Add(hn::LoadU(kTag, to), sum[r][v]) : sum[r][v], kTag, to);
    }
  }
}

void scores(const kvsim::ScoreTask& t) {
  for (int64_t k0 = 0; k0 < t.keys; k0 += 96) {
    const int64_t k1 = std::min<int64_t>(t.keys, k0 + 96);
    for (int64_t c = 0; c < t.ld; c += 2 * kWide)
      for (int64_t k = k0; k < k1; k += kRound)
        micro(t.k + k * t.d, 1, t.d, t.qt + c, t.ld, t.d, t.s + k * t.ld + c, t.ld, false);
    for (int64_t c = 0; c < t.ld; c += kWide) {
      Vector most = hn::LoadU(kTag, t.maximum + c);
      for (int64_t k = k0; k < k1; ++k) most = hn::Max(hn::LoadU(kTag, t.s + k * t.ld + c), most);
      hn::StoreU(most, kTag, t.maximum + c);
    }
  }
}

void exponentiate(float* s, int64_t keys, int64_t ld, const float* shift, double* mass) {
  for (int64_t k0 = 0; k0 < keys; k0 += 48)
    for (int64_t c = 0; c < ld; c += kWide) {
      Vector sum = hn::Zero(kTag);
      for (int64_t k = k0; k < std::min(keys, k0 + 48); ++k) {
        float* const at = s + k * ld + c;
        const Vector x = hn::Sub(hn::LoadU(kTag, at), hn::LoadU(kTag, shift + c));
        const Vector e = hn::Exp(kTag, x);
        hn::StoreU(e, kTag, at);
        sum = hn::Add(sum, e);
      }
      float lanes[kWide];
      hn::StoreU(sum, kTag, lanes);
      for (int64_t i = 0; i < kWide; ++i) mass[c + i] += static_cast<double>(lanes[i]);
    }
}

void product(const kvsim::ProductTask& t) {
  for (int64_t k0 = 0; k0 < t.count; k0 += 126)
    for (int64_t c = 0; c < t.columns; c += 2 * kWide)
      for (int64_t m = 0; m < t.rows; m += kRound)
        micro(t.e + k0 * t.lde + m, t.lde, 1, t.v + k0 * t.ldv + c, t.ldv,
              std::min<int64_t>(126, t.count - k0), t.acc + m * t.lda + c, t.lda, true);
}

double seconds(const std::function<void()>& work) {
  const auto now = [] {
    timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
  };
  const double begin = now();
  for (int i = 0; i < 4; ++i) work();
  return now() - begin;
}

bool compare(const char* name, const std::function<void()>& ours,
             const std::function<void()>& theirs, const std::vector<float>& a,
             const std::vector<float>& b) {
  ours();
  theirs();
  double worst = 0;
  for (size_t i = 0; i < a.size(); ++i)
    worst = std::max(worst, std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i])) /
                                (1 + std::abs(static_cast<double>(a[i]))));
  if (!(worst < 1e-5)) {
    std::printf("%s: results differ by %g\n", name, worst);
    return false;
  }
  std::vector<double> ratio;
  for (int round = 0; round < 200; ++round) {
    const double mine = seconds(ours);
    ratio.push_back(seconds(theirs) / mine);
  }
  std::sort(ratio.begin(), ratio.end());
  std::printf("| %s | %.2f [%.2f..%.2f] |\n", name, ratio[100], ratio[20], ratio[180]);
  return true;
}

}  // namespace

int main() {
  constexpr int64_t keys = 2016, d = 128, rows = 96, ldv = d + 16;  // 96 rows: a tile
  std::mt19937 draw(1);
  const auto numbers = [&](int64_t count) {
    std::vector<float> x(static_cast<size_t>(count));
    for (float& one : x) one = std::uniform_real_distribution<float>(-0.5f, 0.5f)(draw);
    return x;
  };
  const std::vector<float> k = numbers(keys * d), q = numbers(d * rows), v = numbers(keys * ldv);
  const std::vector<float> shift(rows, 3.0f);
  std::vector<float> s = numbers(keys * rows), most(rows), acc(rows * d);
  std::vector<float> their_s = s, their_most = most, their_acc = acc;
  std::vector<double> mass(rows), their_mass(rows);
  const std::vector<float> e = s;
  const auto& table = kvsim::v3::kTable;

  kvsim::ScoreTask score{};
  score.k = k.data(), score.keys = keys, score.d = d, score.qt = q.data(), score.ld = rows;
  score.s = s.data(), score.maximum = most.data(), score.scale = 1;
  kvsim::ScoreTask their_score = score;
  their_score.s = their_s.data(), their_score.maximum = their_most.data();
  kvsim::ProductTask sum{};
  sum.count = keys, sum.e = e.data(), sum.lde = rows, sum.rows = rows, sum.v = v.data();
  sum.ldv = ldv, sum.columns = d, sum.acc = acc.data(), sum.lda = d;
  kvsim::ProductTask their_sum = sum;
  their_sum.acc = their_acc.data();

  std::printf("| loop | Highway by ours, median [10..90 %%] |\n|---|---|\n");
  const bool same = compare(
                        "products, keys in a row", [&] { table.product(sum); },
                        [&] {
    product(their_sum);
                        },
                        acc, their_acc) &&
      compare(
          "scores", [&] { table.scores(score); }, [&] { scores(their_score); }, s, their_s) &&
      compare(
          "exponentials and their sums",
          [&] {
    table.exponentiate(s.data(), keys, rows, shift.data(), nullptr, mass.data(), nullptr);
          },
          [&] { exponentiate(their_s.data(), keys, rows, shift.data(), their_mass.data()); }, s,
          their_s);
  return same ? 0 : 1;
}
