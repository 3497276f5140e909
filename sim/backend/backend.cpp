#include "sim/backend/backend.hpp"

#include <Eigen/Dense>

#include "sim/core/numbers.hpp"

namespace kvsim {
namespace {

constexpr int64_t kMostRows = 64;

/// Rows of one pass that one trace, or one part of a probe, holds.
struct RowSource {
  const LayerTrace* trace;
  std::vector<int64_t> rows;  ///< stored queries
  int64_t columns;
  int probe = -1;
  size_t part = 0;
};

std::vector<RowSource> sources_of(LayerWork& work, const AttentionPass& pass) {
  std::vector<RowSource> sources;
  if (!pass.positions.empty())
    sources.push_back({&work.trace(), stored_queries(work, pass.positions, pass.look_ahead),
                       pass.columns > 0 ? pass.columns : work.entries()});
  if (pass.probe < 0) return sources;
  const ProbeInfo& probe = work.info().probes[pass.probe];
  for (size_t part = 0; part < probe.parts.size(); ++part) {
    const Range tokens = probe.parts[part].tokens;
    std::vector<int64_t> rows;
    for (const int64_t token : pass.probe_tokens)
      if (tokens.contains(token)) rows.push_back(token - tokens.begin);
    if (rows.empty()) continue;
    const ProbeView& view = work.probe_part(pass.probe, part);
    const bool all = pass.logits || pass.outputs;
    sources.push_back({&view.layer, std::move(rows), all ? view.info.total_len : work.entries(),
                       pass.probe, part});
  }
  return sources;
}

constexpr int64_t kEntries = 4096;  // read at a time: 4 MB of keys and values with d = dv = 128

/// Adds what a query sees of further entries.
void add_part(double log_mass, std::span<const float> mean, double& all_mass,
              std::span<double> all_mean) {
  const double together = log_add(all_mass, log_mass);
  if (together == -std::numeric_limits<double>::infinity()) return;
  const double before = std::exp(all_mass - together), added = std::exp(log_mass - together);
  for (size_t c = 0; c < mean.size(); ++c)
    all_mean[c] = before * all_mean[c] + added * static_cast<double>(mean[c]);
  all_mass = together;
}

}  // namespace

std::vector<int64_t> stored_queries(const LayerWork& work, std::span<const int64_t> positions,
                                    bool look_ahead) {
  const std::vector<int64_t>& all = work.info().query_position;
  std::vector<int64_t> stored;
  for (const int64_t position : positions) {
    const auto at = std::lower_bound(all.begin(), all.end(), position);
    if (at == all.end() || *at != position)
      throw std::logic_error("a query is read that the trace does not hold");
    if (position >= work.entries() && !look_ahead)
      throw std::logic_error("a policy reads a query of its future");
    stored.push_back(at - all.begin());
  }
  return stored;
}

void for_each_attention_block(
    LayerWork& work, const AttentionPass& pass,
    const std::function<void(const AttentionBlock& block, int64_t first_row)>& visit) {
  AttentionRequest request{
      .kv_head = 0, .rows = {}, .columns = 0, .logits = pass.logits, .outputs = pass.outputs};
  AttentionBlock block;
  const auto visit_rows =
      [&](const RowSource& source, int kv, int64_t before, int64_t begin, int64_t end) {
    request.kv_head = kv;
    request.columns = source.columns;
    request.rows.assign(source.rows.begin() + begin, source.rows.begin() + end);
    work.backend().attention(*source.trace, request, block);
    block.probe = source.probe;
    block.part = source.part;
    block.tokens = source.probe < 0 ? std::vector<int64_t>() : request.rows;
    visit(block, before + begin);
  };
  const auto visit_source = [&](const RowSource& source, Range kv_heads, int64_t before) {
    const auto rows = std::ssize(source.rows);
    const int64_t per_row = source.columns * work.group_size();
    const int64_t step = std::clamp<int64_t>(
        work.backend().values_at_once() / std::max<int64_t>(per_row, 1), 2, kMostRows);
    for (int64_t first = 0; first < rows; first += step)
      for (int64_t kv = kv_heads.begin; kv < kv_heads.end; ++kv)
        visit_rows(source, static_cast<int>(kv), before, first, std::min(rows, first + step));
  };
  const std::vector<RowSource> sources = sources_of(work, pass);
  for (int kv = 0; kv < (pass.rows_outer ? 1 : work.kv_heads()); ++kv) {
    int64_t before = 0;
    for (const RowSource& source : sources) {
      visit_source(source, pass.rows_outer ? Range{0, work.kv_heads()} : Range{kv, kv + 1}, before);
      before += std::ssize(source.rows);
    }
  }
}

GramFactor factor_of_gram(const Table<double>& gram) {
  using RowMajor = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  const int64_t size = gram.rows();
  const Eigen::MatrixXd g = Eigen::Map<const RowMajor>(gram.data(), size, size);
  const Eigen::LLT<Eigen::MatrixXd> cholesky(g);
  GramFactor result{Table<double>(size, size), false};
  Eigen::Map<RowMajor> r(result.r.data(), size, size);
  // A tiny pivot means that rounding, not W^h, decided the factor.
  result.triangular = cholesky.info() == Eigen::Success &&
                      cholesky.matrixL().toDenseMatrix().diagonal().minCoeff() >
                          1e-6 * cholesky.matrixL().toDenseMatrix().diagonal().maxCoeff();
  if (result.triangular) {
    r = cholesky.matrixU();
  } else {
    const Eigen::SelfAdjointEigenSolver<Eigen::MatrixXd> solver(g);
    const Eigen::VectorXd root = solver.eigenvalues().cwiseMax(0.0).cwiseSqrt();
    r = root.asDiagonal() * solver.eigenvectors().transpose();
  }
  return result;
}

RestAttention rest_attention(Backend& backend, const LayerTrace& layer, int head,
                             std::span<const int64_t> queries, std::span<const uint32_t> without) {
  constexpr float kUnseen = -std::numeric_limits<float>::infinity();
  const auto count = std::ssize(queries);
  const int64_t d = layer.k.dim(2), dv = layer.value_dim();
  const int kv = head / layer.info->group_size();
  Table<float> rows(count, d);
  std::vector<int64_t> seen(queries.size());
  int64_t visible = 0;
  for (int64_t r = 0; r < count; ++r) {
    const int64_t query = queries[r];
    layer.q.read(head, query, query + 1, rows.row(r).data());
    visible = std::max(visible, layer.info->query_position[query] + 1);
  }
  RestAttention rest{std::vector<double>(queries.size(), static_cast<double>(kUnseen)),
                     Table<double>(count, dv, 0.0)};
  Table<float> means(count, dv);
  std::vector<double> masses(queries.size());
  for (int64_t begin = 0; begin < visible; begin += kEntries) {
    const int64_t end = std::min(visible, begin + kEntries);
    Table<float> keys(end - begin, d), values(end - begin, dv);
    layer.k.read(kv, begin, end, keys.data());
    layer.v.read(kv, begin, end, values.data());
    std::vector<float> weights(end - begin, 0.0f);
    for (const int64_t entry : without)
      if (entry >= begin && entry < end) weights[entry - begin] = kUnseen;
    for (size_t r = 0; r < seen.size(); ++r) {
      const int64_t position = layer.info->query_position[queries[r]];
      seen[r] = std::clamp<int64_t>(position + 1 - begin, 0, end - begin);
    }
    SlotRows part;
    part.heads = 1;
    part.rows = count;
    part.queries = rows.data();
    part.segments = {{keys.data(), values.data(), end - begin, weights.data()}};
    part.seen = seen.data();
    part.sinks = begin == 0 ? sinks_from(layer, head) : nullptr;
    part.log_sum_exp = masses.data();
    part.outputs = means.data();
    backend.attend(layer, {&part, 1});
    for (int64_t r = 0; r < count; ++r)
      add_part(masses[r], means.row(r), rest.log_mass[r], rest.mean.row(r));
  }
  return rest;
}

}  // namespace kvsim
