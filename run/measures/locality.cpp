// Is attention alike at neighbouring steps (metrics.md 5.3)?
#include "analysis/locality.hpp"

#include <optional>

#include "run/measures/measure.hpp"

namespace kvsim::measures::locality {
namespace {

constexpr const char* kHead = "layer head";
const DeclareMeasure measure(
    {.name = "locality", .place = 540, .whole = true},
    {{"locality", kHead, "1", "locality of attention in time",
      "1 - locality_within / locality_permuted: 0 for white noise, near 1 for "
      "slow change; NaN for fewer than 32 steps"},
     {"locality_within", kHead, "1", "variance within windows over total variance",
      "mean over windows of 16 steps, summed over prompt entries"},
     {"locality_permuted", kHead, "1", "the same for random orders of the steps",
      "mean of 20 orders"}});

class LocalityMeasure : public Measure {
 public:
  using Measure::Measure;

  MeasureNeeds needs() const override { return {.attention_columns = run().info.prompt_len}; }
  void start_rows(const MeasuredLayer& layer) override {
    heads_.emplace(layer.work.query_heads(), run().info.prompt_len, run().info.steps(),
                   run().options.seed);
  }
  void see_rows(const AttentionBlock& rows, int64_t first_step) override {
    heads_->add(rows, first_step);
  }
  void finish(const MeasuredLayer& layer, MeasureResults& results) override {
    for (int h = 0; h < layer.work.query_heads(); ++h) {
      const Locality::Result& head = heads_->result(h);
      results.set("locality", {layer.index, h}, head.locality);
      results.set("locality_within", {layer.index, h}, head.within);
      results.set("locality_permuted", {layer.index, h}, head.permuted);
    }
  }

 private:
  std::optional<Locality> heads_;  ///< of the layer at work
};
const RegisterMeasure<LocalityMeasure> registered(measure);

}  // namespace
}  // namespace kvsim::measures::locality
