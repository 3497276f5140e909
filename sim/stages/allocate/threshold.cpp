#include <algorithm>

#include "sim/stages/allocate/allocate.hpp"

namespace kvsim::stages::allocate::threshold {
namespace {

const Declare threshold("threshold", "number >= 0 score", "0.0001",
                        "entries of a larger score are kept", tested("0 0.01 0.5 1.5"));
const Declare threshold_of(
    "threshold_of", "score | mean | max", "score",
    "the threshold as it is, or times the mean or the largest score of the head");
enum class Of { score, mean, max };  // its words

/// What `threshold` multiplies, of one head's candidates.
double unit(Of of, std::span<const double> scores, const std::vector<uint32_t>& order) {
  if (of == Of::score || order.empty()) return 1;
  if (of == Of::max) return scores[order.front()];
  double sum = 0;
  for (const uint32_t i : order) sum += scores[i];
  return sum / static_cast<double>(order.size());
}

class Threshold : public Allocate {
 public:
  Threshold()
      : Allocate({"allocate",
                  "threshold",
                  "what exceeds a threshold, whatever the budget",
                  "KVzap; kvsim",
                  {"threshold", "threshold_of", "allocate_score"}}) {}
  bool needs_scores() const override { return true; }
  bool ignores_budget() const override { return true; }
  bool spends_budget() const override { return false; }
  bool nests(const Settings&) const override { return true; }  // the same set at every budget
  Table<int64_t> budgets(const AllocationRequest& request) const override {
    const Settings& settings = *request.settings;
    Table<int64_t> all(static_cast<int64_t>(request.layers.size()), request.owners);
    for (size_t l = 0; l < request.layers.size(); ++l) {
      const AllocationLayer& layer = request.layers[l];
      for (int64_t owner = 0; owner < request.owners; ++owner) {
        const auto scores = layer.ranking->score->row(owner);
        const auto& order = layer.ranking->order[static_cast<size_t>(owner)];
        const double least = settings.real(threshold) *
                             unit(settings.word<Of>(threshold_of), scores, order);
        const auto& sure = layer.guaranteed[static_cast<size_t>(owner)];
        std::vector<uint8_t> taken(scores.size(), 0);
        for (const uint32_t i : sure) taken[i] = 1;
        all(static_cast<int64_t>(l), owner) = std::ssize(sure) +
                                              std::ranges::count_if(order, [&](uint32_t i) {
                                                return !taken[i] && scores[i] > least;
                                              });
      }
    }
    return all;
  }
};
const Register<Allocate, Threshold> registered;

}  // namespace
}  // namespace kvsim::stages::allocate::threshold
