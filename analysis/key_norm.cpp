#include "analysis/formulas.hpp"
#include "analysis/measure.hpp"
#include "analysis/statistics.hpp"

namespace kvsim {

std::vector<Range> prompt_parts(int64_t entries, int64_t most) {
  const int64_t count = std::min(entries, most);
  std::vector<Range> parts;
  for (int64_t p = 0; p < count; ++p)
    parts.push_back({p * entries / count, (p + 1) * entries / count});
  return parts;
}

KeyNorm::KeyNorm(int query_heads, int64_t entries) : attention_(query_heads, entries) {}

void KeyNorm::add(const AttentionBlock& block, int64_t) {
  parallel_for(block.heads, [&](int64_t x) {
    const auto sum = attention_.row(block.kv_head * block.heads + x);
    for (int64_t r = 0; r < block.rows; ++r) {
      const float* row = block.attention_row(static_cast<int>(x), r);
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += static_cast<double>(row[i]);
    }
  });
}

KeyNorm::WithAttention KeyNorm::with_attention(int query_head,
                                               std::span<const double> norms) const {
  const auto attention = attention_.row(query_head);
  return {pearson(norms, attention), spearman(norms, attention)};
}

std::vector<double> key_norms(const LayerTrace& layer, int kv_head) {
  const int64_t entries = layer.info->prompt_len, d = layer.k.dim(2);
  Table<float> keys(entries, d);
  layer.k.read(kv_head, 0, entries, keys.data());
  std::vector<double> norms;
  for (int64_t i = 0; i < entries; ++i) {
    double squares = 0;
    for (const float x : keys.row(i)) squares += static_cast<double>(x) * static_cast<double>(x);
    norms.push_back(std::sqrt(squares));
  }
  return norms;
}

double norm_with_position(std::span<const double> norms) {
  return spearman(norms, ascending<double>(std::ssize(norms)));
}

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

std::vector<Range> measured_parts(int64_t entries) { return prompt_parts(entries, kParts); }

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

struct KeyNormMeasure : MeasureOfRows<KeyNorm> {
  using MeasureOfRows::MeasureOfRows;

  MeasureNeeds needs() const override { return {.attention_columns = run().info.prompt_len}; }
  void start_rows(const MeasuredLayer& layer) override {
    seen_.emplace(layer.work.query_heads(), run().info.prompt_len);
  }
  void finish(const MeasuredLayer& layer, MeasureResults& results) override {
    const std::vector<Range> parts = measured_parts(run().info.prompt_len);
    const int group = layer.work.group_size();
    for (int kv = 0; kv < layer.work.kv_heads(); ++kv) {
      const std::vector<double> norms = key_norms(layer.work.trace(), kv);
      for (int64_t p = 0; p < std::ssize(parts); ++p)
        results.set("key_norm", {layer.index, kv, p},
                    mean(std::span(norms).subspan(parts[p].begin, parts[p].size())));
      results.set("key_norm_position", {layer.index, kv}, norm_with_position(norms));
      for (int h = kv * group; h < (kv + 1) * group; ++h) {
        const KeyNorm::WithAttention found = seen_->with_attention(h, norms);
        results.set("key_norm_attention_pearson", {layer.index, h}, found.pearson);
        results.set("key_norm_attention_spearman", {layer.index, h}, found.spearman);
      }
    }
  }
};
const RegisterMeasure<KeyNormMeasure> registered(measure);

}  // namespace
}  // namespace kvsim::measures::key_norm
