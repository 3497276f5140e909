#include <algorithm>
#include <limits>
#include <tuple>

#include "sim/stages/allocate/allocate.hpp"
#include "sim/stages/notes.hpp"

namespace kvsim::stages::allocate::composite {
namespace {

const Declare composite_first(
    "composite_first", "lifted | own", "lifted",
    "composites of the first layer are worth the best of any layer, or their own");
enum class First { lifted, own };  // its words

/// One rank of a layer: the entries that its heads have there, one of each, go or stay together.
struct Composite {
  double score = 0;
  size_t layer = 0;
  int64_t rank = 0;
};

/// Scores of the r-th best entries of a layer, mean over heads, [ranks]; `sure` of them are not to
/// be chosen: guaranteed entries of some head stand there.
struct LayerRanks {
  int64_t sure = 0;
  std::vector<double> score;
};

LayerRanks ranks_of(const AllocationLayer& layer, int64_t owners, int64_t entries, double factor) {
  LayerRanks ranks;
  for (const auto& guaranteed : layer.guaranteed)
    ranks.sure = std::max(ranks.sure, std::ssize(guaranteed));
  for (int64_t owner = 0; owner < owners; ++owner) {
    const auto& guaranteed = layer.guaranteed[static_cast<size_t>(owner)];
    std::vector<uint8_t> taken(static_cast<size_t>(entries), 0);
    for (const uint32_t i : guaranteed) taken[i] = 1;
    std::vector<double> own(guaranteed.size(), 0.0);  // below `sure`, never looked at
    for (const uint32_t i : layer.ranking->order[static_cast<size_t>(owner)])
      if (!taken[i]) own.push_back((*layer.ranking->score)(owner, i));
    if (owner == 0) ranks.score.assign(own.size(), 0.0);
    ranks.score.resize(std::min(ranks.score.size(), own.size()));
    for (size_t r = 0; r < ranks.score.size(); ++r)
      ranks.score[r] += factor * own[r] / static_cast<double>(owners);
  }
  return ranks;
}

/// No layer has a better composite at any rank than the first one.
void lift_first(std::vector<LayerRanks>& layers) {
  std::vector<double>& first = layers.front().score;
  for (const LayerRanks& layer : layers)
    for (size_t r = static_cast<size_t>(layer.sure); r < std::min(first.size(), layer.score.size());
         ++r)
      first[r] = std::max(first[r], layer.score[r]);
}

class CompositeTokens : public Allocate {
 public:
  CompositeTokens()
      : Allocate(
            {"allocate",
             "composite",
             "layers compete with the mean over heads of the r-th best score",
             "KVCompose",
             {"ada_total", "allocate_score", "joint_depth", "joint_stream", "composite_first"}}) {}
  bool needs_scores() const override { return true; }
  bool across_layers() const override { return true; }
  bool needs_stream(const Settings& settings) const override {
    return settings.real(keys::joint_stream) != 0;
  }
  bool spends_budget() const override { return false; }  // no layer is left without an entry
  Table<int64_t> budgets(const AllocationRequest& request) const override {
    const auto count = std::ssize(request.layers);
    Table<int64_t> all(count, request.owners, request.budget);
    for (const AllocationLayer& layer : request.layers)
      for (const int64_t guarded : layer.guarded)
        if (guarded >= request.budget) return all;
    const std::vector<double> factors = layer_factors(request);
    std::vector<LayerRanks> layers;
    for (size_t l = 0; l < request.layers.size(); ++l)
      layers.push_back(ranks_of(request.layers[l], request.owners, request.entries, factors[l]));
    if (request.settings->word<First>(composite_first) == First::lifted) lift_first(layers);
    std::vector<int64_t> given;
    int64_t left = shared_total(request, count);
    std::vector<Composite> open;
    for (size_t l = 0; l < layers.size(); ++l) {
      given.push_back(layers[l].sure);
      left -= layers[l].sure;
      for (int64_t r = layers[l].sure; r < std::ssize(layers[l].score); ++r)
        open.push_back({layers[l].score[static_cast<size_t>(r)], l, r});
    }
    left = std::clamp<int64_t>(left, 0, std::ssize(open));
    std::ranges::nth_element(open, open.begin() + left, [](const Composite& a, const Composite& b) {
      return std::tuple(-a.score, a.layer, a.rank) < std::tuple(-b.score, b.layer, b.rank);
    });
    for (int64_t k = 0; k < left; ++k) ++given[open[static_cast<size_t>(k)].layer];
    for (int64_t l = 0; l < count; ++l)
      std::ranges::fill(all.row(l), std::max<int64_t>(1, given[static_cast<size_t>(l)]));
    return all;
  }
};
const Register<Allocate, CompositeTokens> composite;
const DeclareNote composite_note{
    {.of = "allocate=composite",
     .source = "KVCompose; kvpress KVComposePress",
     .point = "which composites stay where two have the same score, as the first layer's have with "
              "those that it was lifted to; what protected entries do",
     .reading = "those of the lower layer, then of the lower rank; ranks at which some head has a "
                "protected entry stay in all heads"}};

}  // namespace
}  // namespace kvsim::stages::allocate::composite
