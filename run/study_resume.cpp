// A study that goes on where an earlier run of the program stopped. A finished layer leaves behind
// its rows of the results, the sums that memory and the error of the stream add up over layers, and
// what policies carry from layer to layer; the pass before it, of records that rank across layers,
// leaves the layer's scores.
#include <algorithm>

#include "run/layer_store.hpp"
#include "run/study.hpp"
#include "run/study_results.hpp"
#include "sim/core/archive.hpp"

namespace kvsim {

/// Takes from the store what it has of the first pass; the layers it does not have.
std::vector<int> Study::layers_to_survey(LayerStore* store) {
  if (store == nullptr) return options_.layers;
  std::vector<int> missing;
  for (const int layer : options_.layers) {
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
  for (; store != nullptr && count < options_.layers.size(); ++count) {
    auto state = store->load(LayerPass::replay, options_.layers[count]);
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
  results_->exchange_layer(layer, archive);
  policies_->exchange_selected(archive);
  periodic_->exchange_selected(archive);
}

void StudyResults::exchange_layer(int64_t layer, Archive& archive) {
  for (const Variable& variable : dataset_.variables()) {
    if (!variable.is_coordinate()) exchange_rows(dataset_.at(variable.name), layer, archive);
  }
  exchange_sums(memory_, archive);
  exchange_sums(stream_, archive);
  archive.exchange(last_norm_);
}

/// The rows of one layer; nothing of a variable without layers, which is made in the end.
void StudyResults::exchange_rows(Variable& variable, int64_t layer, Archive& archive) {
  const auto axis = std::ranges::find(variable.dims, "layer");
  if (axis == variable.dims.end()) return;
  const int64_t before = dataset_.count({variable.dims.begin(), axis});
  const int64_t layers = dataset_.size("layer");
  const auto length = static_cast<size_t>(dataset_.count({axis + 1, variable.dims.end()}));
  const auto rows = [&](auto& values) {
    for (int64_t b = 0; b < before; ++b) {
      const auto first = static_cast<size_t>(b * layers + layer) * length;
      archive.exchange(std::span(values).subspan(first, length));
    }
  };
  if (auto* reals = std::get_if<std::vector<double>>(&variable.values)) rows(*reals);
  else rows(std::get<std::vector<uint8_t>>(variable.values));
}

template <class Sums>
void StudyResults::exchange_sums(std::map<std::pair<int, int>, Sums>& sums, Archive& archive) {
  std::vector<int> cells;
  for (const auto& [cell, sum] : sums) cells.insert(cells.end(), {cell.first, cell.second});
  archive.exchange(cells);
  for (size_t c = 0; c + 1 < cells.size(); c += 2) sums[{cells[c], cells[c + 1]}].exchange(archive);
}

}  // namespace kvsim
