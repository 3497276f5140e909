#include "sim/replay/slots.hpp"

#include <Eigen/Core>
#include <algorithm>
#include <cassert>
#include <cmath>
#include <limits>

#include "sim/core/parallel.hpp"

namespace kvsim {
namespace {

using RowMatrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using MatrixView = Eigen::Map<const RowMatrix>;

MatrixView view(const Table<float>& table) { return {table.data(), table.rows(), table.columns()}; }

/// Query head at work on its slots; scratch of one thread.
struct HeadInput {
  const OwnerSlots* slots = nullptr;
  std::span<const float> log_weight;      ///< [slots], or empty
  const Table<float>* later_k = nullptr;  ///< [N-n][d]
  const Table<float>* later_v = nullptr;  ///< [N-n][dv]
};

/// One query: softmax over slots and the first `later` later entries, in place of the logits in
/// `row`; out[dv] is the weighted mean of the values. Returns the log-sum-exp.
double attend_row(const LayerTrace& layer, const HeadInput& input, int head, int64_t later,
                  std::span<float> row, float* out) {
  const auto slots = static_cast<int64_t>(input.slots->k.rows());
  const int64_t used = slots + later;
  double largest = layer.attention_sink.empty()
                       ? -std::numeric_limits<double>::infinity()
                       : static_cast<double>(layer.attention_sink[static_cast<size_t>(head)]);
  for (int64_t r = 0; r < used; ++r) {
    auto logit = static_cast<float>(static_cast<double>(row[static_cast<size_t>(r)]) * layer.scale);
    if (layer.softcap != 0) {
      logit = static_cast<float>(layer.softcap * std::tanh(logit / layer.softcap));
    }
    if (r < slots && !input.log_weight.empty()) logit += input.log_weight[static_cast<size_t>(r)];
    row[static_cast<size_t>(r)] = logit;
    largest = std::max(largest, static_cast<double>(logit));
  }
  double sum = 0;
  if (!layer.attention_sink.empty()) {
    sum = std::exp(static_cast<double>(layer.attention_sink[static_cast<size_t>(head)]) - largest);
  }
  const int64_t width = input.later_v->columns();
  std::vector<double> mean(static_cast<size_t>(width), 0.0);
  for (int64_t r = 0; r < used; ++r) {
    const double weight = std::exp(static_cast<double>(row[static_cast<size_t>(r)]) - largest);
    sum += weight;
    const auto value = r < slots ? input.slots->v.row(r) : input.later_v->row(r - slots);
    for (size_t c = 0; c < mean.size(); ++c) mean[c] += weight * static_cast<double>(value[c]);
  }
  for (size_t c = 0; c < mean.size(); ++c) out[c] = static_cast<float>(mean[c] / sum);
  return largest + std::log(sum);
}

/// Later entries n..N-1 of one KV head.
Table<float> later_rows(const Tensor& tensor, int kv_head, int64_t n) {
  Table<float> rows(tensor.dim(1) - n, tensor.dim(2));
  tensor.read(kv_head, n, tensor.dim(1), rows.data());
  return rows;
}

}  // namespace

void rotate_key(const TraceInfo& info, int64_t positions, std::span<float> key) {
  const size_t half = info.rope_inv_freq.size();
  for (size_t j = 0; j < half; ++j) {
    const double angle = static_cast<double>(positions) * info.rope_inv_freq[j];
    const double c = std::cos(angle);
    const double s = std::sin(angle);
    float& a = key[info.rope_interleaved ? 2 * j : j];
    float& b = key[info.rope_interleaved ? 2 * j + 1 : j + half];
    const double x = a;
    const double y = b;
    a = static_cast<float>(x * c - y * s);
    b = static_cast<float>(x * s + y * c);
  }
}

LayerSlots slots_of(const LayerWork& work, const KeptSets& kept) {
  LayerSlots slots;
  slots.per_query_head = kept.per_query_head;
  const int heads_per_kv = kept.per_query_head ? work.group_size() : 1;
  Table<float> keys;
  Table<float> values;
  for (size_t o = 0; o < kept.owners.size(); ++o) {
    if (static_cast<int>(o) % heads_per_kv == 0) {
      keys = work.keys(static_cast<int>(o) / heads_per_kv);
      values = work.values(static_cast<int>(o) / heads_per_kv);
    }
    const auto& entries = kept.owners[o];
    OwnerSlots owner;
    owner.k = Table<float>(static_cast<int64_t>(entries.size()), keys.columns());
    owner.v = Table<float>(static_cast<int64_t>(entries.size()), values.columns());
    for (size_t r = 0; r < entries.size(); ++r) {
      std::ranges::copy(keys.row(entries[r]), owner.k.row(static_cast<int64_t>(r)).begin());
      std::ranges::copy(values.row(entries[r]), owner.v.row(static_cast<int64_t>(r)).begin());
    }
    slots.owners.push_back(std::move(owner));
  }
  return slots;
}

void rotate_to_cache_positions(const TraceInfo& info, const KeptSets& kept, LayerSlots& slots) {
  for (size_t o = 0; o < kept.owners.size(); ++o) {
    const auto& entries = kept.owners[o];
    const int64_t shift = info.prompt_len - static_cast<int64_t>(entries.size());
    for (size_t r = 0; r < entries.size(); ++r) {
      const int64_t moved = static_cast<int64_t>(r) + shift - static_cast<int64_t>(entries[r]);
      if (moved != 0) rotate_key(info, moved, slots.owners[o].k.row(static_cast<int64_t>(r)));
    }
  }
}

void attend_slots(const LayerWork& work, const LayerSlots& slots, int64_t first, int64_t steps,
                  float* out, const SlotWatcher& watch) {
  const TraceInfo& info = work.info();
  const LayerTrace& layer = work.trace();
  const int group = work.group_size();
  const int64_t row0 = info.first_step() + first;
  const int64_t n = work.entries();
  parallel_for(work.query_heads(), [&](int64_t h) {
    const auto head = static_cast<int>(h);
    const int kv = head / group;
    const OwnerSlots& owner = slots.owners[static_cast<size_t>(slots.per_query_head ? head : kv)];
    const Table<float> later_k = later_rows(layer.k, kv, n);
    const Table<float> later_v = later_rows(layer.v, kv, n);
    HeadInput input{&owner, {}, &later_k, &later_v};
    if (!owner.log_weight.empty()) {
      input.log_weight = owner.log_weight.row(slots.per_query_head ? 0 : head % group);
    }
    Table<float> queries(steps, layer.q.dim(2));
    layer.q.read(head, row0, row0 + steps, queries.data());
    RowMatrix logits(steps, owner.k.rows() + later_k.rows());
    logits.leftCols(owner.k.rows()).noalias() = view(queries) * view(owner.k).transpose();
    logits.rightCols(later_k.rows()).noalias() = view(queries) * view(later_k).transpose();
    for (int64_t s = 0; s < steps; ++s) {
      const int64_t position = info.query_position[static_cast<size_t>(row0 + s)];
      const int64_t later = position - n + 1;
      const std::span<float> row(logits.data() + s * logits.cols(),
                                 static_cast<size_t>(owner.k.rows() + later));
      const double log_sum_exp = attend_row(layer, input, head, later, row,
                                            out + (h * steps + s) * work.value_dim());
      if (watch) watch(head, s, row, log_sum_exp);
    }
  });
}

}  // namespace kvsim
