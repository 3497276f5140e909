// Norms of keys by position, and whether low ones get the attention (The Pitfalls, appendix J.5).
#include "analysis/key_norm.hpp"

#include <optional>

#include "analysis/summary.hpp"
#include "run/measures/measure.hpp"
#include "run/measures/prompt_parts.hpp"

namespace kvsim::measures::key_norm {
namespace {

DeclareMeasure measure({.name = "key_norm", .place = 560, .whole = true});
const MeasureVariable by_part = measure.variable(
    {.name = "key_norm",
     .dims = "layer kv_head part",
     .units = "model units",
     .long_name = "norm of the keys",
     .definition = "L2 norm, mean over the part's entries"});
const MeasureVariable with_position = measure.variable(
    {.name = "key_norm_position",
     .dims = "layer kv_head",
     .long_name = "rank correlation of key norm and position",
     .definition = "Spearman over prompt entries; positive: early keys are the short ones"});
const MeasureVariable pearson = measure.variable(
    {.name = "key_norm_attention_pearson",
     .dims = "layer head",
     .long_name = "correlation of key norm and later attention",
     .definition = "Pearson of the norm and the mean attention over steps, over prompt entries"});
const MeasureVariable spearman = measure.variable(
    {.name = "key_norm_attention_spearman",
     .dims = "layer head",
     .long_name = "rank correlation of key norm and later attention",
     .definition = "the same by ranks"});

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
        results.set(by_part, {layer.index, kv, static_cast<int64_t>(p)},
                    mean(std::span(norms).subspan(static_cast<size_t>(parts[p].begin),
                                                  static_cast<size_t>(parts[p].size()))));
      results.set(with_position, {layer.index, kv}, norm_with_position(norms));
      for (int h = kv * group; h < (kv + 1) * group; ++h) {
        const KeyNorm::WithAttention found = attention_->with_attention(h, norms);
        results.set(pearson, {layer.index, h}, found.pearson);
        results.set(spearman, {layer.index, h}, found.spearman);
      }
    }
  }

 private:
  std::optional<KeyNorm> attention_;  ///< of the layer at work
};
const RegisterMeasure<KeyNormMeasure> registered(measure);

}  // namespace
}  // namespace kvsim::measures::key_norm
