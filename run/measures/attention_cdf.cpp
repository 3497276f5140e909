// How concentrated attention is (metrics.md 5.1).
#include "analysis/attention_cdf.hpp"

#include <optional>

#include "run/measures/measure.hpp"

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

class CdfMeasure : public Measure {
 public:
  using Measure::Measure;

  MeasureNeeds needs() const override { return {.attention_columns = run().info.total_len}; }
  void start_rows(const MeasuredLayer& layer) override {
    cdf_.emplace(layer.work.query_heads(), run().info.steps());
  }
  void see_rows(const AttentionBlock& rows, int64_t first_step) override {
    cdf_->add(rows, first_step);
  }
  void finish(const MeasuredLayer& layer, MeasureResults& results) override {
    for (size_t s = 0; s < AttentionCdf::kPercents.size(); ++s) {
      const auto at = static_cast<int64_t>(s);
      results.set("attention_cdf_mean", {layer.index, at}, cdf_->mean_of(s));
      results.set("attention_cdf_p05", {layer.index, at}, cdf_->p05_of(s));
    }
  }

 private:
  std::optional<AttentionCdf> cdf_;  ///< of the layer at work
};
const RegisterMeasure<CdfMeasure> registered(measure);

}  // namespace
}  // namespace kvsim::measures::attention_cdf
