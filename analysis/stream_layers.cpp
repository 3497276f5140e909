#include "analysis/stream_layers.hpp"

#include "analysis/dataset.hpp"

namespace kvsim {

std::string stream_error_layers(const Dataset& results) {
  if (!results.has("stream_error_rms")) return "";
  const int64_t layers = results.size("layer");
  const AttributeValue* found = results.attribute("num_layers");
  const auto* model = found == nullptr ? nullptr : std::get_if<int64_t>(found);
  if (model == nullptr) return "the " + std::to_string(layers) + " captured layers";
  if (layers >= *model) return "";
  return std::to_string(layers) + " of the model's " + std::to_string(*model) + " layers";
}

}  // namespace kvsim
