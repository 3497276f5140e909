#include "sim/core/numbers.hpp"
#include "sim/stages/indicator/indicator.hpp"

namespace kvsim::stages::indicator::reread {

enum class RereadNorm { none, input, residual, gradient };  // in the order of the words
const Declare reread_norm("reread_norm", "none | input | residual | gradient", "none",
                          "X times ||v_i W^h||_2 over the norm of the query's own input, or "
                          "residual stream, or times that of its gradient");

enum class Unread { last, first };
const Declare unread("unread", "last | first", "last",
                     "entries that no part reads again rank last, or first");

/// Softmax of a query that reads a stretch of the prompt again, over the sinks before it, that
/// stretch and the keys of its own part up to itself (KVzip 3.2).
struct RereadRows : StoredRows {
  RereadRows(LayerWork& work, const Settings& settings, const Segment& segment)
      : StoredRows(segment.candidates), work_(work), sinks_(settings.count(keys::sinks)),
        norm_(settings.word<RereadNorm>(reread_norm)),
        unread_first_(settings.word<Unread>(unread) == Unread::first),
        probe_(work.info().probes[segment.probe]) {
    if (norm_ != RereadNorm::none) value_norms_ = &work.projected_norms(Norm::l2);
  }

  void start(const AttentionBlock& block) override {
    const int64_t count = block.heads * block.rows;
    stored_.reserve(count * candidates_.size());
    parallel_for(count, [&](int64_t index) {
      fill(block, static_cast<int>(index / block.rows), index % block.rows);
    });
  }

 private:
  void fill(const AttentionBlock& block, int head, int64_t row) {
    double* const out = stored_.data() + (head * block.rows + row) * candidates_.size();
    std::fill_n(out, candidates_.size(), 0.0);
    if (unread_first_)
      for (int64_t i = candidates_.begin; i < candidates_.end; ++i)
        if (!is_read(i)) out[i - candidates_.begin] = INFINITY;
    const float* const logits = block.logit_row(head, row);
    const Range reads = probe_.parts[block.part].reads;
    const double all = log_of_seen(block, head, row, logits);
    const Range own{std::max(reads.begin, candidates_.begin), std::min(reads.end, candidates_.end)};
    for (int64_t i = own.begin; i < own.end; ++i)
      out[i - candidates_.begin] = std::exp(static_cast<double>(logits[i]) - all) *
                                   factor(block, head, row, i);
  }

  double log_of_seen(const AttentionBlock& block, int head, int64_t row,
                     const float* logits) const {
    const Range reads = probe_.parts[block.part].reads;
    const auto sum_of = [&](int64_t begin, int64_t end) {
      return log_sum_exp({logits + begin, static_cast<size_t>(std::max<int64_t>(end - begin, 0))});
    };
    const int64_t n = work_.entries();
    const int64_t own = probe_.has_keys ? block.tokens[row] + 1 : 0;
    double all = log_add(sum_of(reads.begin, reads.end), sum_of(n, n + own));
    all = log_add(all, sum_of(0, std::min(sinks_, reads.begin)));
    const std::vector<float>& sink = work_.trace().attention_sink;
    if (sink.empty()) return all;
    return log_add(all, static_cast<double>(sink[block.kv_head * block.heads + head]));
  }

  /// ||v_i W^h|| / ||h_j||, or times the norm of the gradient at what the attention adds (KVgrad).
  double factor(const AttentionBlock& block, int head, int64_t row, int64_t entry) const {
    if (norm_ == RereadNorm::none) return 1;
    const ProbeLayer& layer = work_.trace().probes[block.probe];
    const auto token = static_cast<size_t>(probe_.parts[block.part].tokens.begin +
                                           block.tokens[row]);
    const double value = (*value_norms_)(block.kv_head * block.heads + head, entry);
    switch (norm_) {
      case RereadNorm::input: return value / static_cast<double>(layer.input_norm[token]);
      case RereadNorm::residual: return value / static_cast<double>(layer.residual_norm[token]);
      default: return value * static_cast<double>(layer.output_gradient[token]);
    }
  }

  bool is_read(int64_t entry) const {
    return std::ranges::any_of(probe_.parts,
                               [&](const ProbePart& part) { return part.reads.contains(entry); });
  }

  LayerWork& work_;
  int64_t sinks_;
  RereadNorm norm_;
  bool unread_first_;
  const ProbeInfo& probe_;
  const Table<float>* value_norms_ = nullptr;  // [Hq][n]
};

struct Reread : RowIndicator, AsksProbe {
  Reread()
      : RowIndicator(
            {"reread",
             "attention of a probe's query over the sinks, what its part reads again, and its part",
             "KVzip 3.2", "reread_norm unread sinks", "a probe whose parts read the prompt again",
             "", "queries=probe"},
            {.logits = true, .probes = Probes::only}) {}
  std::string probe_fault(const Settings& settings, const ProbeInfo& probe) const override {
    if (std::ranges::all_of(probe.parts,
                            [](const ProbePart& part) { return part.reads.size() == 0; }))
      return "parts that read nothing again";
    const auto norm = settings.word<RereadNorm>(reread_norm);
    if (norm == RereadNorm::input && !probe.has_input_norm) return "no input_norm";
    if (norm == RereadNorm::residual && !probe.has_residual_norm) return "no residual_norm";
    if (norm == RereadNorm::gradient && !probe.has_output_gradient) return "no output_gradient";
    return {};
  }
  std::unique_ptr<IndicatorRows> rows(LayerWork& work, const Settings& settings,
                                      const Segment& segment) const override {
    return std::make_unique<RereadRows>(work, settings, segment);
  }
};

/// Rows of queries that attend to the whole prompt, later entries included.
struct WholePromptRows : StoredRows {
  WholePromptRows(LayerWork& work, Range candidates) : StoredRows(candidates), work_(work) {}

 protected:
  /// Keys of the block's KV head are read before any query is made.
  void read_keys(const AttentionBlock& block) {
    if (block.kv_head != kv_head_) keys_ = work_.keys(block.kv_head);
    kv_head_ = block.kv_head;
  }
  /// Attention [heads * rows][n] of queries [heads * rows][d] of a block; their log-sum-exp too,
  /// where there is room for it.
  const float* attend(const AttentionBlock& block, const Table<float>& queries,
                      double* log_sum_exp = nullptr) {
    SlotRows rows;
    rows.heads = block.heads;
    rows.rows = block.rows;
    rows.queries = queries.data();
    rows.segments = {{keys_.data(), nullptr, keys_.rows()}};
    rows.sinks = sinks_from(work_.trace(), block.kv_head * block.heads);
    rows.attention = attention_.reserve(queries.rows() * keys_.rows());
    rows.log_sum_exp = log_sum_exp;
    work_.backend().attend(work_.trace(), {&rows, 1});
    stored_.reserve(queries.rows() * candidates_.size());
    return rows.attention;
  }

  LayerWork& work_;
  Table<float> keys_;  ///< [n][d] of the KV head at work

 private:
  int kv_head_ = -1;
  Buffer<float> attention_;  // [heads][rows][n]
};

/// Attention of a query to the whole prompt and nothing else.
struct UnmaskedRows : WholePromptRows {
  using WholePromptRows::WholePromptRows;

  void start(const AttentionBlock& block) override {
    read_keys(block);
    const std::vector<int64_t> stored = stored_queries(work_, block.positions, true);
    Table<float> queries(block.heads * block.rows, keys_.columns());
    for (int x = 0; x < block.heads; ++x)
      for (int64_t r = 0; r < block.rows; ++r)
        work_.trace().q.read(block.kv_head * block.heads + x, stored[r], stored[r] + 1,
                             queries.row(x * block.rows + r).data());
    const float* const attention = attend(block, queries);
    parallel_for(queries.rows(), [&](int64_t index) {
      const float* const from = attention + index * keys_.rows() + candidates_.begin;
      double* const to = stored_.data() + index * candidates_.size();
      for (int64_t c = 0; c < candidates_.size(); ++c) to[c] = static_cast<double>(from[c]);
    });
  }
};

struct UnmaskedAttention : RowIndicator {
  UnmaskedAttention()
      : RowIndicator({"unmasked-attention",
                      "attention of the query to the whole prompt, entries after it included",
                      "Attention Matching repository"},
                     {.sees_all = true, .probes = Probes::refused, .cost = 1}) {}
  std::unique_ptr<IndicatorRows> rows(LayerWork& work, const Settings&,
                                      const Segment& segment) const override {
    return std::make_unique<UnmaskedRows>(work, segment.candidates);
  }
};

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
struct RehearsalRows : WholePromptRows {
  RehearsalRows(LayerWork& work, Range candidates, const Settings& settings)
      : WholePromptRows(work, candidates), steps_(settings.count(rehearsal_steps)) {
    if (settings.word<RehearsalNorm>(rehearsal_norm) == RehearsalNorm::projected)
      norms_ = &work.projected_norms(Norm::l2);
  }

  void start(const AttentionBlock& block) override {
    read_keys(block);
    std::vector<double> log_sum_exp(block.heads * block.rows);
    const float* const attention = attend(block, moved_queries(block), log_sum_exp.data());
    parallel_for(std::ssize(log_sum_exp), [&](int64_t index) {
      share(block, index, attention + index * keys_.rows(), log_sum_exp[index]);
    });
  }

 private:
  /// Number of a row's token in what is read again: the prompt, or the part of a probe.
  int64_t token(const AttentionBlock& block, int64_t row) const {
    return block.of_probe() ? block.tokens[row] : block.positions[row];
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
      const int64_t query = rows[r];
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
    if (!block.of_probe()) return block.positions[row];
    const ProbeInfo& probe = work_.info().probes[block.probe];
    return probe.position[probe.parts[block.part].tokens.begin + token(block, row)];
  }

  /// Softmax over the prompt's keys and the sink, whose attention and log-sum-exp are given, and
  /// the piece's own. `index`: of [heads][rows].
  void share(const AttentionBlock& block, int64_t index, const float* attention,
             double log_sum_exp) {
    const int64_t row = index % block.rows, at = token(block, row);
    const auto head = static_cast<int>(index / block.rows);
    const bool has_own = !block.of_probe() || work_.info().probes[block.probe].has_keys;
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

  int64_t steps_;                        // H
  const Table<float>* norms_ = nullptr;  // [Hq][n]
};

struct Rehearsal : RowIndicator {
  Rehearsal()
      : RowIndicator(
            {"rehearsal", "attention of the query moved behind the prompt, with its own piece",
             "kvsim", "rehearsal_steps rehearsal_norm", "rope/inv_freq"},
            {.logits = true, .moves_queries = true}) {}
  std::unique_ptr<IndicatorRows> rows(LayerWork& work, const Settings& settings,
                                      const Segment& segment) const override {
    return std::make_unique<RehearsalRows>(work, segment.candidates, settings);
  }
};
const Register<Indicator, Reread, UnmaskedAttention, Rehearsal> registered;

}  // namespace kvsim::stages::indicator::reread
