#include "analysis/measure.hpp"
#include "analysis/statistics.hpp"

namespace kvsim::measures::attention_cdf {
namespace {

constexpr std::array<int64_t, 6> kPercents = {1, 2, 5, 10, 20, 50};

VariableValues shares(const RunShape& /*run*/) {
  std::vector<double> values;
  for (const int64_t percent : kPercents) values.push_back(static_cast<double>(percent) / 100);
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

/// How concentrated attention is (metrics.md 5.1). A sink's part is no entry's and not counted.
struct AttentionCdf : Measure {
  using Measure::Measure;

  MeasureNeeds needs() const override { return {.attention_columns = run().info.total_len}; }
  void start_rows(const MeasuredLayer& layer) override {
    held_.fill(Table<double>(layer.work.query_heads(), run().info.steps(), kUndefined));
  }
  void see_rows(const AttentionBlock& rows, int64_t first_step) override {
    parallel_for(rows.heads * rows.rows, [&](int64_t task) {
      const auto x = static_cast<int>(task / rows.rows);
      const int64_t r = task % rows.rows;
      const int64_t visible = rows.positions[r] + 1;
      const float* attention = rows.attention_row(x, r);
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
        held_[share](rows.kv_head * rows.heads + x, first_step + r) = sum / total;
      }
    });
  }
  void finish(const MeasuredLayer& layer, MeasureResults& results) override {
    for (int64_t s = 0; s < std::ssize(held_); ++s) {
      results.set("attention_cdf_mean", {layer.index, s}, mean(held_[s].values()));
      results.set("attention_cdf_p05", {layer.index, s}, percentile(held_[s].values(), 5));
    }
  }

 private:
  std::array<Table<double>, kPercents.size()> held_;  ///< of each share [Hq][T]
};
const RegisterMeasure<AttentionCdf> registered(measure);

}  // namespace
}  // namespace kvsim::measures::attention_cdf
