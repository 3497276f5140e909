#include <algorithm>
#include <vector>

#include "sim/core/parallel.hpp"
#include "sim/stages/indicator/indicator.hpp"

namespace kvsim::stages::indicator::cur {
namespace {

constexpr int64_t kBlock = 16;  // entries over which squared norms are shared out

/// Share of an entry in the squared norms of its block; 0 where all of it are 0.
std::vector<double> block_shares(const Table<float>& vectors) {
  std::vector<double> share(static_cast<size_t>(vectors.rows()), 0.0);
  for (int64_t begin = 0; begin < vectors.rows(); begin += kBlock) {
    const int64_t end = std::min(vectors.rows(), begin + kBlock);
    double sum = 0;
    for (int64_t i = begin; i < end; ++i) {
      double& square = share[static_cast<size_t>(i)];
      for (const float x : vectors.row(i)) square += static_cast<double>(x) * x;
      sum += square;
    }
    for (int64_t i = begin; i < end && sum > 0; ++i) share[static_cast<size_t>(i)] /= sum;
  }
  return share;
}

class Cur : public Indicator {
 public:
  Cur()
      : Indicator({"indicator",
                   "cur",
                   "product of key's and value's shares in the squared norms of their block",
                   "CurDKV; kvpress CURPress",
                   {}}) {}
  Axes axes() const override { return Axes::entry; }
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
const Register<Indicator, Cur> cur;

}  // namespace
}  // namespace kvsim::stages::indicator::cur
