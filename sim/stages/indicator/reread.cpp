#include <algorithm>
#include <cmath>
#include <vector>

#include "sim/core/log_sum.hpp"
#include "sim/core/parallel.hpp"
#include "sim/stages/common_keys.hpp"
#include "sim/stages/indicator/indicator.hpp"
#include "sim/stages/notes.hpp"
#include "sim/stages/parameter.hpp"

namespace kvsim::stages::indicator::reread {
namespace {

enum class RereadNorm { none, input, residual, gradient };  // in the order of the words
const Declare reread_norm("reread_norm", "none | input | residual | gradient", "none",
                          "X times ||v_i W^h||_2 over the norm of the query's own input, or "
                          "residual stream, or times that of its gradient");

enum class Unread { last, first };
const Declare unread("unread", "last | first", "last",
                     "entries that no part reads again rank last, or first");

/// Softmax of a query that reads a stretch of the prompt again, over the sinks before it, that
/// stretch and the keys of its own part up to itself (KVzip 3.2).
class RereadRows : public StoredRows {
 public:
  RereadRows(LayerWork& work, const Settings& settings, const Segment& segment)
      : StoredRows(segment.candidates), work_(work), sinks_(settings.count(keys::sinks)),
        norm_(settings.word<RereadNorm>(reread_norm)),
        unread_first_(settings.word<Unread>(unread) == Unread::first),
        probe_(work.info().probes[static_cast<size_t>(segment.probe)]) {
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
    const int64_t own = probe_.has_keys ? block.tokens[static_cast<size_t>(row)] + 1 : 0;
    double all = log_add(sum_of(reads.begin, reads.end), sum_of(n, n + own));
    all = log_add(all, sum_of(0, std::min(sinks_, reads.begin)));
    const std::vector<float>& sink = work_.trace().attention_sink;
    if (sink.empty()) return all;
    return log_add(
        all, static_cast<double>(sink[static_cast<size_t>(block.kv_head * block.heads + head)]));
  }

  /// ||v_i W^h|| / ||h_j||, or times the norm of the gradient at what the attention adds (KVgrad).
  double factor(const AttentionBlock& block, int head, int64_t row, int64_t entry) const {
    if (norm_ == RereadNorm::none) return 1;
    const ProbeLayer& layer = work_.trace().probes[static_cast<size_t>(block.probe)];
    const auto token = static_cast<size_t>(probe_.parts[block.part].tokens.begin +
                                           block.tokens[static_cast<size_t>(row)]);
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

class Reread : public RowIndicator {
 public:
  Reread()
      : RowIndicator(
            {"indicator", "reread",
             "attention of a probe's query over the sinks, what its part reads again, and its part",
             "KVzip 3.2", "reread_norm unread sinks", "a probe whose parts read the prompt again",
             "", "queries=probe"}) {}
  bool needs_logits() const override { return true; }
  bool needs_probe() const override { return true; }
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
const Register<Indicator, Reread> reread;
const DeclareNote reread_note(
    "indicator=reread", "KVzip; kvpress KVzipPress",
    "what the chat template puts before the context is not read again",
    "the repository keeps it beside the budget, kvpress evicts it first; here it is read again, "
    "too, unless capture.py was told not to, and then `unread` decides");

}  // namespace
}  // namespace kvsim::stages::indicator::reread
