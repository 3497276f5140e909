#include <algorithm>
#include <cmath>
#include <vector>

#include "sim/core/log_sum.hpp"
#include "sim/core/parallel.hpp"
#include "sim/core/rotation.hpp"
#include "sim/stages/indicator/indicator.hpp"
#include "sim/stages/parameter.hpp"

namespace kvsim::stages::indicator::rehearsal {
namespace {

const Declare rehearsal_steps{{.key = "rehearsal_steps",
                               .place = 524,
                               .type = ValueType::count,
                               .fallback = "128",
                               .meaning = "length of the pieces that stand in for what follows",
                               .unit = "tokens",
                               .low = 1,
                               .test_values = {"1", "6", "100"}}};

/// Attention on the prompt if pieces of the prompt were written once more after it: the query at j
/// stands at n + j mod H and sees the prompt's keys from there, and beside them, as near as they
/// were, the keys of its own piece up to itself.
class RehearsalRows : public StoredRows {
 public:
  RehearsalRows(LayerWork& work, Range candidates, int64_t steps)
      : StoredRows(candidates), work_(work), steps_(steps) {}

  void start(const AttentionBlock& block) override {
    if (block.kv_head != kv_head_) keys_ = work_.keys(block.kv_head);
    kv_head_ = block.kv_head;
    if (block.of_probe()) return copy(block);
    const int64_t columns = keys_.rows(), count = block.heads * block.rows;
    const Table<float> queries = moved_queries(block);
    SlotRows moved;
    moved.heads = block.heads;
    moved.rows = block.rows;
    moved.queries = queries.data();
    moved.segments = {{keys_.data(), nullptr, columns}};
    moved.sinks = sinks_from(work_.trace(), block.kv_head * block.heads);
    moved.logits = logits_.reserve(count * columns);
    std::vector<double> log_sum_exp(static_cast<size_t>(count));
    moved.log_sum_exp = log_sum_exp.data();
    work_.backend().attend(work_.trace(), {&moved, 1});
    stored_.reserve(count * candidates_.size());
    parallel_for(count, [&](int64_t index) {
      share(block, index, {moved.logits + index * columns, static_cast<size_t>(columns)},
            log_sum_exp[static_cast<size_t>(index)]);
    });
  }

 private:
  /// A probe's queries stand behind the prompt already, and see their own part beside them.
  void copy(const AttentionBlock& block) {
    const int64_t count = block.heads * block.rows, columns = candidates_.size();
    double* const out = stored_.reserve(count * columns);
    parallel_for(count, [&](int64_t index) {
      const float* const row = block.attention.data() + index * block.columns + candidates_.begin;
      std::copy_n(row, columns, out + index * columns);
    });
  }

  /// [heads * rows][d] of a block.
  Table<float> moved_queries(const AttentionBlock& block) const {
    const std::vector<int64_t> stored = stored_queries(work_, block.positions, false);
    Table<float> moved(block.heads * block.rows, keys_.columns());
    RotationMemory rotation;
    for (int64_t r = 0; r < block.rows; ++r) {
      const int64_t query = stored[static_cast<size_t>(r)];
      const int64_t position = block.positions[static_cast<size_t>(r)];
      for (int x = 0; x < block.heads; ++x) {
        const auto row = moved.row(x * block.rows + r);
        work_.trace().q.read(block.kv_head * block.heads + x, query, query + 1, row.data());
        rotation.rotate(work_.info(), work_.entries() + position % steps_ - position, row);
      }
    }
    return moved;
  }

  /// Softmax over the prompt's keys and the sink, whose logits and log-sum-exp are given, and the
  /// piece's own. `index`: of [heads][rows].
  void share(const AttentionBlock& block, int64_t index, std::span<const float> logits,
             double log_sum_exp) {
    const int64_t row = index % block.rows, position = block.positions[static_cast<size_t>(row)];
    const int64_t begin = position - position % steps_;
    const float* const own = block.logit_row(static_cast<int>(index / block.rows), row);
    const double all = log_add(
        log_sum_exp, kvsim::log_sum_exp({own + begin, static_cast<size_t>(position + 1 - begin)}));
    double* const out = stored_.data() + index * candidates_.size();
    for (int64_t i = candidates_.begin; i < candidates_.end; ++i)
      out[i - candidates_.begin] = std::exp(static_cast<double>(logits[static_cast<size_t>(i)]) -
                                            all);
  }

  LayerWork& work_;
  int64_t steps_;  // H
  int kv_head_ = -1;
  Table<float> keys_;     // [n][d] of that KV head
  Buffer<float> logits_;  // [heads][rows][n] of moved queries
};

class Rehearsal : public Indicator {
 public:
  Rehearsal()
      : Indicator({"indicator",
                   "rehearsal",
                   "attention of the query moved behind the prompt, with its own piece",
                   "kvsim",
                   {"rehearsal_steps"},
                   "rope/inv_freq"}) {}
  Axes axes() const override { return Axes::head_row; }
  bool needs_logits() const override { return true; }
  bool moves_queries() const override { return true; }
  std::unique_ptr<RowIndicator> rows(LayerWork& work, const Settings& settings,
                                     const Segment& segment) const override {
    return std::make_unique<RehearsalRows>(work, segment.candidates,
                                           settings.count(rehearsal_steps));
  }
};
const Register<Indicator, Rehearsal> rehearsal;

}  // namespace
}  // namespace kvsim::stages::indicator::rehearsal
