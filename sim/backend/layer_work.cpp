#include "sim/backend/layer_work.hpp"

#include <Eigen/Dense>
#include <algorithm>
#include <stdexcept>

namespace kvsim {
namespace {

constexpr int64_t kBlockValues = int64_t{1} << 22;   // 16 MB of attention rows at a time
constexpr int64_t kMostRows = 64;

using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

/// The output slices of heads [first, first + heads), stacked: [heads*dv][D].
Matrix stacked_output(const LayerTrace& trace, int first, int heads) {
  const int64_t dv = trace.wo.dim(1);
  const int64_t hidden = trace.wo.dim(2);
  std::vector<float> slice(static_cast<size_t>(dv * hidden));
  Matrix w(heads * dv, hidden);
  for (int x = 0; x < heads; ++x) {
    trace.wo.read(first + x, 0, dv, slice.data());
    w.middleRows(x * dv, dv) =
        Eigen::Map<Eigen::Matrix<float, -1, -1, Eigen::RowMajor>>(slice.data(), dv, hidden)
            .cast<double>();
  }
  return w;
}

/// F with F^T F = W W^T. The triangular factor of W^T's QR decomposition exists whatever the rank
/// of W, and does not square its condition number as a Cholesky factor of W W^T would.
Table<double> factor_of(const Matrix& w) {
  const Eigen::HouseholderQR<Eigen::MatrixXd> qr(w.transpose());
  const int64_t size = w.rows();
  const int64_t rank = std::min<int64_t>(size, w.cols());
  Table<double> factor(size, size);
  for (int64_t r = 0; r < rank; ++r)
    for (int64_t c = r; c < size; ++c) factor(r, c) = qr.matrixQR()(r, c);
  return factor;
}

}  // namespace

LayerWork::LayerWork(const LayerTrace& trace, Backend& backend)
    : trace_(trace), backend_(backend) {}

const Table<float>& LayerWork::projected_norms(Norm norm) {
  const auto [at, fresh] = projected_norms_.try_emplace(norm, query_heads(), entries());
  if (fresh) backend_.projected_norms(trace_, norm, {0, entries()}, at->second.data());
  return at->second;
}

const Table<float>& LayerWork::value_norms(Norm norm) {
  const auto [at, fresh] = value_norms_.try_emplace(norm, kv_heads(), entries());
  if (fresh) backend_.value_norms(trace_, norm, {0, entries()}, at->second.data());
  return at->second;
}

Table<float> LayerWork::keys(int kv_head) const {
  Table<float> k(entries(), trace_.k.dim(2));
  trace_.k.read(kv_head, 0, entries(), k.data());
  return k;
}

Table<float> LayerWork::values(int kv_head) const { return values_ahead(kv_head, entries()); }

Table<float> LayerWork::values_ahead(int kv_head, int64_t count) const {
  Table<float> v(count, value_dim());
  trace_.v.read(kv_head, 0, count, v.data());
  return v;
}

const Table<double>& LayerWork::output_factor(int query_head) {
  const auto [at, fresh] = output_factor_.try_emplace(query_head);
  if (fresh) at->second = factor_of(stacked_output(trace_, query_head, 1));
  return at->second;
}

const Table<double>& LayerWork::group_output_factor(int kv_head) {
  const auto [at, fresh] = group_factor_.try_emplace(kv_head);
  if (fresh)
    at->second = factor_of(stacked_output(trace_, kv_head * group_size(), group_size()));
  return at->second;
}

void for_each_attention_block(
    LayerWork& work, const AttentionPass& pass,
    const std::function<void(const AttentionBlock& block, int64_t first_row)>& visit) {
  const TraceInfo& info = work.info();
  const int64_t rows = static_cast<int64_t>(pass.positions.size());
  std::vector<int64_t> stored(pass.positions.size());   // index of each query in the file
  for (size_t j = 0; j < stored.size(); ++j) {
    const int64_t position = pass.positions[j];
    const auto& all = info.query_position;
    const auto at = std::lower_bound(all.begin(), all.end(), position);
    if (at == all.end() || *at != position)
      throw std::logic_error("a query is read that the trace does not hold");
    if (position >= info.prompt_len && !pass.look_ahead)
      throw std::logic_error("a policy reads a query of its future");
    stored[j] = at - all.begin();
  }
  AttentionRequest request{.kv_head = 0,
                           .rows = {},
                           .columns = pass.columns > 0 ? pass.columns : work.entries(),
                           .logits = pass.logits,
                           .outputs = pass.outputs};
  const int64_t per_row = request.columns * work.group_size();
  const int64_t step = std::clamp<int64_t>(kBlockValues / std::max<int64_t>(per_row, 1), 4,
                                           kMostRows);
  AttentionBlock block;
  const auto visit_block = [&](int kv, int64_t first) {
    request.kv_head = kv;
    request.rows.assign(stored.begin() + first, stored.begin() + std::min(rows, first + step));
    work.backend().attention(work.trace(), request, block);
    visit(block, first);
  };
  if (pass.rows_outer) {
    for (int64_t first = 0; first < rows; first += step)
      for (int kv = 0; kv < work.kv_heads(); ++kv) visit_block(kv, first);
  } else {
    for (int kv = 0; kv < work.kv_heads(); ++kv)
      for (int64_t first = 0; first < rows; first += step) visit_block(kv, first);
  }
}

}  // namespace kvsim
