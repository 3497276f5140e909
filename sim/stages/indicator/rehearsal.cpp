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

const Declare rehearsal_steps("rehearsal_steps", "count >= 1 tokens", "128",
                              "length of the pieces that stand in for what follows",
                              tested("1 6 100"));

enum class RehearsalNorm { none, projected };  // in the order of the words
const Declare rehearsal_norm("rehearsal_norm", "none | projected", "none",
                             "X times ||v_i W^h||_2: what the entry adds");

/// Attention on the prompt if pieces of the prompt were written once more after it: the query at j
/// stands at n + j mod H and sees the prompt's keys from there, and beside them, as near as they
/// were, the keys of its own piece up to itself. A probe's tokens move in the same way: token t of
/// a part, which stood at n + t, to n + t mod H.
class RehearsalRows : public StoredRows {
 public:
  RehearsalRows(LayerWork& work, Range candidates, const Settings& settings)
      : StoredRows(candidates), work_(work), steps_(settings.count(rehearsal_steps)) {
    if (settings.word<RehearsalNorm>(rehearsal_norm) == RehearsalNorm::projected)
      norms_ = &work.projected_norms(Norm::l2);
  }

  void start(const AttentionBlock& block) override {
    if (block.kv_head != kv_head_) keys_ = work_.keys(block.kv_head);
    kv_head_ = block.kv_head;
    const int64_t columns = keys_.rows(), count = block.heads * block.rows;
    const Table<float> queries = moved_queries(block);
    SlotRows moved;
    moved.heads = block.heads;
    moved.rows = block.rows;
    moved.queries = queries.data();
    moved.segments = {{keys_.data(), nullptr, columns}};
    moved.sinks = sinks_from(work_.trace(), block.kv_head * block.heads);
    moved.attention = attention_.reserve(count * columns);
    std::vector<double> log_sum_exp(static_cast<size_t>(count));
    moved.log_sum_exp = log_sum_exp.data();
    work_.backend().attend(work_.trace(), {&moved, 1});
    stored_.reserve(count * candidates_.size());
    parallel_for(count, [&](int64_t index) {
      share(block, index, moved.attention + index * columns,
            log_sum_exp[static_cast<size_t>(index)]);
    });
  }

 private:
  /// Number of a row's token in what is read again: the prompt, or the part of a probe.
  int64_t token(const AttentionBlock& block, int64_t row) const {
    return block.of_probe() ? block.tokens[static_cast<size_t>(row)]
                            : block.positions[static_cast<size_t>(row)];
  }

  /// [heads * rows][d] of a block.
  Table<float> moved_queries(const AttentionBlock& block) const {
    const Tensor& queries = block.of_probe() ? work_.probe_part(block.probe, block.part).layer.q
                                             : work_.trace().q;
    const std::vector<int64_t> rows = block.of_probe()
                                          ? block.tokens
                                          : stored_queries(work_, block.positions, false);
    Table<float> moved(block.heads * block.rows, keys_.columns());
    RotationMemory rotation;
    for (int64_t r = 0; r < block.rows; ++r) {
      const int64_t query = rows[static_cast<size_t>(r)];
      const int64_t to = work_.entries() + token(block, r) % steps_;
      for (int x = 0; x < block.heads; ++x) {
        const auto row = moved.row(x * block.rows + r);
        queries.read(block.kv_head * block.heads + x, query, query + 1, row.data());
        rotation.rotate(work_.rotation(), to - stood_at(block, r), row);
      }
    }
    return moved;
  }

  int64_t stood_at(const AttentionBlock& block, int64_t row) const {
    if (!block.of_probe()) return block.positions[static_cast<size_t>(row)];
    const ProbeInfo& probe = work_.info().probes[static_cast<size_t>(block.probe)];
    return probe
        .position[static_cast<size_t>(probe.parts[block.part].tokens.begin + token(block, row))];
  }

  /// Softmax over the prompt's keys and the sink, whose attention and log-sum-exp are given, and
  /// the piece's own. `index`: of [heads][rows].
  void share(const AttentionBlock& block, int64_t index, const float* attention,
             double log_sum_exp) {
    const int64_t row = index % block.rows, at = token(block, row);
    const auto head = static_cast<int>(index / block.rows);
    const bool has_own = !block.of_probe() ||
                         work_.info().probes[static_cast<size_t>(block.probe)].has_keys;
    double all = log_sum_exp;
    if (has_own) {
      const float* const own = block.logit_row(head, row) +
                               (block.of_probe() ? work_.entries() : 0);
      const auto count = static_cast<size_t>(at % steps_ + 1);
      all = log_add(all, kvsim::log_sum_exp({own + at - at % steps_, count}));
    }
    const double weight = std::exp(log_sum_exp - all);  // of what is given, beside the own piece
    double* const out = stored_.data() + index * candidates_.size();
    for (int64_t i = candidates_.begin; i < candidates_.end; ++i) {
      const double x = static_cast<double>(attention[i]) * weight;
      out[i - candidates_.begin] = norms_ == nullptr
                                       ? x
                                       : x * static_cast<double>(
                                                 (*norms_)(block.kv_head * block.heads + head, i));
    }
  }

  LayerWork& work_;
  int64_t steps_;                        // H
  const Table<float>* norms_ = nullptr;  // [Hq][n]
  int kv_head_ = -1;
  Table<float> keys_;        // [n][d] of that KV head
  Buffer<float> attention_;  // [heads][rows][n] of moved queries
};

class Rehearsal : public RowIndicator {
 public:
  Rehearsal()
      : RowIndicator({"indicator", "rehearsal",
                      "attention of the query moved behind the prompt, with its own piece", "kvsim",
                      "rehearsal_steps rehearsal_norm", "rope/inv_freq"}) {}
  bool needs_logits() const override { return true; }
  bool moves_queries() const override { return true; }
  std::unique_ptr<IndicatorRows> rows(LayerWork& work, const Settings& settings,
                                      const Segment& segment) const override {
    return std::make_unique<RehearsalRows>(work, segment.candidates, settings);
  }
};
const Register<Indicator, Rehearsal> rehearsal;

}  // namespace
}  // namespace kvsim::stages::indicator::rehearsal
