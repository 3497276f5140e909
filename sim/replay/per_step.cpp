#include "sim/replay/prefill.hpp"
#include "sim/stages/indicator/indicator.hpp"

namespace kvsim {
namespace {

/// Entries of one owner at a step, ascending: `sure` ones, then the best; whole blocks, no more
/// than its places are.
std::vector<uint32_t> chosen_entries(const Settings& settings, std::span<const double> scores,
                                     const std::vector<uint32_t>& sure, int64_t places) {
  const auto n = std::ssize(scores);
  std::vector<uint8_t> in(scores.size(), 0);
  std::vector<uint32_t> order;
  for (const uint32_t entry : sure) in[entry] = 1;
  for (size_t i = 0; i < scores.size(); ++i)
    if (!in[i]) order.push_back(static_cast<uint32_t>(i));
  const auto most = std::min<int64_t>(places, std::ssize(order));
  std::partial_sort(order.begin(), order.begin() + most, order.end(), best_first(scores));
  order.resize(most);
  order.insert(order.begin(), sure.begin(), sure.end());
  std::ranges::fill(in, uint8_t{0});
  std::vector<uint32_t> set;
  int64_t left = places < n ? places / settings.count(keys::block) : n;
  for (const uint32_t entry : order) {
    if (in[entry]) continue;
    if (left-- == 0) break;
    const Range block = block_of(settings, entry, n);
    for (int64_t i = block.begin; i < block.end; ++i) {
      in[i] = 1;
      set.push_back(static_cast<uint32_t>(i));
    }
  }
  std::ranges::sort(set);
  return set;
}

/// Replays the rows of one block of attention for all budgets.
class BlockReplay {
 public:
  BlockReplay(LayerWork& work, const Settings& settings,
              const std::vector<std::shared_ptr<const KeptSets>>& kept, const PerStepInput& input,
              std::vector<PerStepResult>& results)
      : work_(work), settings_(settings), kept_(kept),
        scorer_(dynamic_cast<const ScoresSteps&>(chosen<Indicator>(settings))
                    .step_scorer(work, settings)),
        input_(input), results_(results) {}

  void run(const AttentionBlock& block, int64_t first_row) {
    if (block.kv_head != kv_head_) {
      const LayerTrace& layer = work_.trace();
      const int64_t all = work_.info().total_len;
      keys_ = Table<float>(all, layer.k.dim(2));
      layer.k.read(block.kv_head, 0, all, keys_.data());
      values_ = work_.values_ahead(block.kv_head, all);
      kv_head_ = block.kv_head;
      if (scorer_) scorer_->start(kv_head_);
    }
    const bool per_query_head = kept_.front()->per_query_head;
    parallel_for(block.rows, [&](int64_t r) {
      if (per_query_head) {
        for (int x = 0; x < block.heads; ++x) run_owner(block, r, first_row + r, x, 1, true);
      } else {
        run_owner(block, r, first_row + r, 0, block.heads, false);
      }
    });
  }

 private:
  float weight(int head, int64_t entry) const {
    return input_.importance[head * input_.stride + entry];
  }

  /// One owner at one step: heads x0..x0+count-1 of the block share its sets.
  void run_owner(const AttentionBlock& block, int64_t row, int64_t step, int x0, int count,
                 bool per_query_head) {
    const int head0 = block.kv_head * block.heads + x0;
    const auto owner = static_cast<size_t>(per_query_head ? head0 : block.kv_head);
    Table<float> queries(count, keys_.columns());
    const int64_t query = work_.info().first_step() + step;
    for (int x = 0; x < count; ++x)
      work_.trace().q.read(head0 + x, query, query + 1, queries.row(x).data());
    Table<double> scores(1, work_.entries());
    if (scorer_) {
      scorer_->score(queries, scores.row(0));
    } else {
      for (int x = 0; x < count; ++x)
        add_importance(block.attention_row(x0 + x, row), head0 + x, scores.row(0));
    }
    score_blocks(settings_, {0, work_.entries()}, scores);
    for (size_t b = 0; b < kept_.size(); ++b) {
      const KeptSets& kept = *kept_[b];
      static const std::vector<uint32_t> kNone;
      const auto& guarded = kept.guarded.empty() ? kNone : kept.guarded[owner];
      std::vector<uint32_t> sure = guarded;
      if (!kept.spread.empty())
        sure.insert(sure.end(), kept.spread[owner].begin(), kept.spread[owner].end());
      std::vector<uint32_t> set = chosen_entries(settings_, scores.row(0), sure,
                                                 kept.places[owner]);
      for (int x = 0; x < count; ++x)
        measure(block.attention_row(x0 + x, row), head0 + x, step, set, guarded, results_[b]);
      attend(block.positions[row], step, head0, queries, set, results_[b].delta);
      if (step + 1 == work_.info().steps()) results_[b].last.owners[owner] = std::move(set);
    }
  }

  void add_importance(const float* attention, int head, std::span<double> out) const {
    for (int64_t i = 0; i < std::ssize(out); ++i)
      out[i] += static_cast<double>(attention[i]) * static_cast<double>(weight(head, i));
  }

  /// Sums of one query head at one step.
  void measure(const float* attention, int head, int64_t step, const std::vector<uint32_t>& set,
               const std::vector<uint32_t>& guarded, PerStepResult& result) const {
    double kept_attention = 0;
    double kept_importance = 0;
    double kept_squares = 0;
    for (const uint32_t entry : set) {
      if (input_.leave_out_guarded && std::binary_search(guarded.begin(), guarded.end(), entry))
        continue;
      kept_attention += static_cast<double>(attention[entry]);
      const double gain = static_cast<double>(attention[entry]) *
                          static_cast<double>(weight(head, entry));
      kept_importance += gain;
      kept_squares += gain * gain;
      for (int64_t part = 0; part < std::ssize(input_.parts); ++part)
        if (std::ranges::any_of(input_.parts[part],
                                [&](Range range) { return range.contains(entry); }))
          result.part_kept(part, step) += gain;
    }
    result.kept.attention(head, step) = kept_attention;
    result.kept.importance(head, step) = kept_importance;
    result.kept.squares(head, step) = kept_squares;
  }

  /// z^ - z of some heads at one step: what is kept and every later entry up to the query.
  void attend(int64_t position, int64_t step, int first_head, const Table<float>& queries,
              const std::vector<uint32_t>& set, std::vector<float>& delta) const {
    const int64_t n = work_.entries(), d = keys_.columns(), width = work_.value_dim();
    const auto heads = static_cast<int>(queries.rows());
    const auto kept = std::ssize(set);
    if (kept == n) return;  // nothing is lost
    Table<float> keys(kept, d), values(kept, width), outputs(heads, width);
    for (int64_t r = 0; r < kept; ++r) {
      std::ranges::copy(keys_.row(set[r]), keys.row(r).begin());
      std::ranges::copy(values_.row(set[r]), values.row(r).begin());
    }
    SlotRows rows;
    rows.heads = heads;
    rows.rows = 1;
    rows.queries = queries.data();
    rows.segments = {{keys.data(), values.data(), kept},
                     {keys_.row(n).data(), values_.row(n).data(), position + 1 - n}};
    rows.sinks = sinks_from(work_.trace(), first_head);
    rows.outputs = outputs.data();
    work_.backend().attend(work_.trace(), {&rows, 1});
    for (int x = 0; x < heads; ++x) {
      const auto at = static_cast<size_t>(((first_head + x) * work_.info().steps() + step) * width);
      for (size_t c = 0; c < static_cast<size_t>(width); ++c)
        delta[at + c] = outputs(x, static_cast<int64_t>(c)) - (*input_.z)[at + c];
    }
  }

  LayerWork& work_;
  const Settings& settings_;
  const std::vector<std::shared_ptr<const KeptSets>>& kept_;
  std::unique_ptr<StepScorer> scorer_;  ///< null: importance
  const PerStepInput& input_;
  std::vector<PerStepResult>& results_;
  Table<float> keys_, values_;  ///< [N][d], [N][dv] of the KV head at work
  int kv_head_ = -1;
};

}  // namespace

std::vector<PerStepResult> replay_per_step(LayerWork& work, const Settings& settings,
                                           const std::vector<std::shared_ptr<const KeptSets>>& kept,
                                           const PerStepInput& input) {
  const int64_t heads = work.query_heads();
  const int64_t steps = work.info().steps();
  std::vector<PerStepResult> results(kept.size());
  for (size_t b = 0; b < kept.size(); ++b) {
    results[b].kept = ShareSums::of(heads, steps);
    results[b].part_kept = Table<double>(std::ssize(input.parts), steps);
    results[b].delta.resize(heads * steps * work.value_dim());
    results[b].last = *kept[b];
  }
  BlockReplay replay(work, settings, kept, input, results);
  const AttentionPass pass{.positions = work.info().later_queries(),
                           .look_ahead = true,
                           .columns = work.info().total_len};
  for_each_attention_block(work, pass, [&](const AttentionBlock& block, int64_t first_row) {
    replay.run(block, first_row);
  });
  return results;
}

}  // namespace kvsim
