// A study that goes on where an earlier run of the program stopped. A finished layer leaves behind
// its rows of the results, the sums that memory and the error of the stream add up over layers, and
// what policies carry from layer to layer; the pass before it, of records that rank across layers,
// leaves the layer's scores.
#include "run/measures/study_measures.hpp"
#include "run/study/layer_store.hpp"
#include "run/study/study.hpp"
#include "sim/core/archive.hpp"

namespace kvsim {

/// Takes from the store what it has of the first pass; the layers it does not have.
std::vector<int> Study::layers_to_survey(LayerStore* store) {
  if (store == nullptr) return plan_.options.layers;
  std::vector<int> missing;
  for (const int layer : plan_.options.layers) {
    if (auto state = store->load(LayerPass::scores, layer)) {
      Archive archive(std::move(*state));
      exchange_survey(layer, archive);
    } else {
      missing.push_back(layer);
    }
  }
  return missing;
}

/// Takes replayed layers from the store up to the first that it does not have; how many.
size_t Study::finished_layers(LayerStore* store) {
  size_t count = 0;
  for (; store != nullptr && count < plan_.options.layers.size(); ++count) {
    auto state = store->load(LayerPass::replay, plan_.options.layers[count]);
    if (!state) break;
    Archive archive(std::move(*state));
    exchange_layer(static_cast<int64_t>(count), archive);
  }
  return count;
}

void Study::exchange_survey(int layer, Archive& archive) {
  policies_->exchange_survey(layer, archive);
  periodic_->exchange_survey(layer, archive);
}

void Study::exchange_layer(int64_t layer, Archive& archive) {
  measures_->exchange_layer(layer, archive);
  policies_->exchange_selected(archive);
  periodic_->exchange_selected(archive);
}

}  // namespace kvsim
