#include "analysis/formulas.hpp"
#include "analysis/measure.hpp"
#include "analysis/statistics.hpp"

namespace kvsim {
namespace {

constexpr int64_t kParts = 128;

VariableValues middles(const RunShape& run) {
  std::vector<double> values;
  for (const Range part : measured_parts(run.info.prompt_len))
    values.push_back(static_cast<double>(part.begin + part.end - 1) / 2);
  return values;
}

const DeclareMeasure declaration({.name = "parts", .place = 500},
                                 {{"part", "part", "1", "middle of a part of the prompt",
                                   "position; at most 128 parts of nearly equal length",
                                   Known{middles}}});

}  // namespace

std::vector<Range> measured_parts(int64_t entries) {
  const int64_t count = std::min(entries, kParts);
  std::vector<Range> parts;
  for (int64_t p = 0; p < count; ++p)
    parts.push_back({p * entries / count, (p + 1) * entries / count});
  return parts;
}

}  // namespace kvsim

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

/// [n] L2 norms of the keys of a KV head.
std::vector<double> key_norms(const LayerTrace& layer, int kv_head) {
  Table<float> keys(layer.info->prompt_len, layer.k.dim(2));
  layer.k.read(kv_head, 0, keys.rows(), keys.data());
  std::vector<double> norms;
  for (int64_t i = 0; i < keys.rows(); ++i) {
    double squares = 0;
    for (const float x : keys.row(i)) squares += static_cast<double>(x) * static_cast<double>(x);
    norms.push_back(std::sqrt(squares));
  }
  return norms;
}

/// Norms of keys, where they are low, and whether low ones get the attention, which is what Knorm
/// relies on (The Pitfalls, appendix J.5).
struct KeyNorm : Measure {
  using Measure::Measure;

  MeasureNeeds needs() const override { return {.attention_columns = run().info.prompt_len}; }
  void start_rows(const MeasuredLayer& layer) override {
    attention_ = Table<double>(layer.work.query_heads(), run().info.prompt_len);
  }
  void see_rows(const AttentionBlock& rows, int64_t /*first_step*/) override {
    parallel_for(rows.heads, [&](int64_t x) {
      const auto sum = attention_.row(rows.kv_head * rows.heads + x);
      for (int64_t r = 0; r < rows.rows; ++r) {
        const float* row = rows.attention_row(static_cast<int>(x), r);
        for (size_t i = 0; i < sum.size(); ++i) sum[i] += static_cast<double>(row[i]);
      }
    });
  }
  void finish(const MeasuredLayer& layer, MeasureResults& results) override {
    const std::vector<Range> parts = measured_parts(run().info.prompt_len);
    const auto positions = ascending<double>(run().info.prompt_len);
    const int group = layer.work.group_size();
    for (int kv = 0; kv < layer.work.kv_heads(); ++kv) {
      const std::vector<double> norms = key_norms(layer.work.trace(), kv);
      for (int64_t p = 0; p < std::ssize(parts); ++p)
        results.set("key_norm", {layer.index, kv, p},
                    mean(std::span(norms).subspan(parts[p].begin, parts[p].size())));
      results.set("key_norm_position", {layer.index, kv}, spearman(norms, positions));
      for (int h = kv * group; h < (kv + 1) * group; ++h) {
        const auto attention = attention_.row(h);
        results.set("key_norm_attention_pearson", {layer.index, h}, pearson(norms, attention));
        results.set("key_norm_attention_spearman", {layer.index, h}, spearman(norms, attention));
      }
    }
  }

 private:
  Table<double> attention_;  ///< [Hq][n] sum over steps
};
const RegisterMeasure<KeyNorm> registered(measure);

}  // namespace
}  // namespace kvsim::measures::key_norm
