// Norms of keys by position, and whether low ones get the attention (The Pitfalls, appendix J.5).
#include "analysis/key_norm.hpp"

#include <optional>

#include "analysis/summary.hpp"
#include "run/measures/measure.hpp"
#include "run/measures/prompt_parts.hpp"

namespace kvsim::measures::key_norm {
namespace {

const DeclareMeasure measure(
    {.name = "key_norm", .place = 560, .whole = true},
    {{"key_norm", "layer kv_head part", "model units", "norm of the keys",
      "L2 norm, mean over the part's entries"},
     {"key_norm_position", "layer kv_head", "1", "rank correlation of key norm and position",
      "Spearman over prompt entries; positive: early keys are the short ones"},
     {"key_norm_attention_pearson", "layer head", "1",
      "correlation of key norm and later attention",
      "Pearson of the norm and the mean attention over steps, over prompt entries"},
     {"key_norm_attention_spearman", "layer head", "1",
      "rank correlation of key norm and later attention", "the same by ranks"}});

class KeyNormMeasure : public Measure {
 public:
  using Measure::Measure;

  MeasureNeeds needs() const override { return {.attention_columns = run().info.prompt_len}; }
  void start_rows(const MeasuredLayer& layer) override {
    attention_.emplace(layer.work.query_heads(), run().info.prompt_len);
  }
  void see_rows(const AttentionBlock& rows, int64_t first_step) override {
    attention_->add(rows, first_step);
  }
  void finish(const MeasuredLayer& layer, MeasureResults& results) override {
    const std::vector<Range> parts = measured_parts(run().info.prompt_len);
    const int group = layer.work.group_size();
    for (int kv = 0; kv < layer.work.kv_heads(); ++kv) {
      const std::vector<double> norms = key_norms(layer.work.trace(), kv);
      for (size_t p = 0; p < parts.size(); ++p)
        results.set("key_norm", {layer.index, kv, static_cast<int64_t>(p)},
                    mean(std::span(norms).subspan(static_cast<size_t>(parts[p].begin),
                                                  static_cast<size_t>(parts[p].size()))));
      results.set("key_norm_position", {layer.index, kv}, norm_with_position(norms));
      for (int h = kv * group; h < (kv + 1) * group; ++h) {
        const KeyNorm::WithAttention found = attention_->with_attention(h, norms);
        results.set("key_norm_attention_pearson", {layer.index, h}, found.pearson);
        results.set("key_norm_attention_spearman", {layer.index, h}, found.spearman);
      }
    }
  }

 private:
  std::optional<KeyNorm> attention_;  ///< of the layer at work
};
const RegisterMeasure<KeyNormMeasure> registered(measure);

}  // namespace
}  // namespace kvsim::measures::key_norm
