#include "analysis/formulas.hpp"
#include "analysis/measure.hpp"
#include "analysis/statistics.hpp"

namespace kvsim {

AttentionCdf::AttentionCdf(int query_heads, int64_t steps) {
  held_.fill(Table<double>(query_heads, steps, kUndefined));
}

void AttentionCdf::add(const AttentionBlock& block, int64_t first_row) {
  parallel_for(block.heads * block.rows, [&](int64_t task) {
    const auto x = static_cast<int>(task / block.rows);
    const int64_t r = task % block.rows;
    const int64_t visible = block.positions[r] + 1;
    const float* attention = block.attention_row(x, r);
    std::vector<float> row(attention, attention + visible);
    double total = 0;
    for (const float a : row) total += static_cast<double>(a);
    if (total == 0) return;
    // From the widest share to the narrowest: each is found among the one before.
    auto end = row.end();
    for (size_t share = kPercents.size(); share-- > 0;) {
      const auto cut = row.begin() + (kPercents[share] * visible + 99) / 100;
      if (cut != end) std::nth_element(row.begin(), cut, end, std::greater<>());
      end = cut;
      double sum = 0;
      for (auto at = row.begin(); at != cut; ++at) sum += static_cast<double>(*at);
      held_[share](block.kv_head * block.heads + x, first_row + r) = sum / total;
    }
  });
}

double AttentionCdf::mean_of(size_t share) const { return mean(held_[share].values()); }
double AttentionCdf::p05_of(size_t share) const { return percentile(held_[share].values(), 5); }

}  // namespace kvsim

namespace kvsim::measures::attention_cdf {
namespace {

VariableValues shares(const RunShape& /*run*/) {
  std::vector<double> values;
  for (const int64_t percent : AttentionCdf::kPercents)
    values.push_back(static_cast<double>(percent) / 100);
  return values;
}

const DeclareMeasure measure(
    {.name = "attention_cdf", .place = 520, .whole = true},
    {{"share", "share", "1", "share of the visible entries", "rounded up to whole entries",
      Known{shares}},
     {"attention_cdf_mean", "layer share", "1", "attention held by the largest entries",
      "share of a query's attention on its ceil(share * visible) largest entries, mean over heads "
      "and steps"},
     {"attention_cdf_p05", "layer share", "1",
      "attention held by the largest entries, percentile 5", "percentile 5 over heads and steps"}});

struct CdfMeasure : MeasureOfRows<AttentionCdf> {
  using MeasureOfRows::MeasureOfRows;

  MeasureNeeds needs() const override { return {.attention_columns = run().info.total_len}; }
  void start_rows(const MeasuredLayer& layer) override {
    seen_.emplace(layer.work.query_heads(), run().info.steps());
  }
  void finish(const MeasuredLayer& layer, MeasureResults& results) override {
    for (size_t s = 0; s < AttentionCdf::kPercents.size(); ++s) {
      const auto at = static_cast<int64_t>(s);
      results.set("attention_cdf_mean", {layer.index, at}, seen_->mean_of(s));
      results.set("attention_cdf_p05", {layer.index, at}, seen_->p05_of(s));
    }
  }
};
const RegisterMeasure<CdfMeasure> registered(measure);

}  // namespace
}  // namespace kvsim::measures::attention_cdf
