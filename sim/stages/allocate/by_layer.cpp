#include <algorithm>
#include <cmath>
#include <numbers>

#include "sim/stages/allocate/allocate.hpp"
#include "sim/stages/common_keys.hpp"
#include "sim/stages/group/group.hpp"
#include "sim/stages/notes.hpp"

namespace kvsim {
namespace keys {

const Declare nested("nested", "flag", "no", "a layer chooses among what the layer before kept",
                     always,
                     only_with({"group",
                                [](const Kind& kind) {
  return dynamic_cast<const Group&>(kind).span() == GroupSpan::layer;
                                }}),
                     lets_nest_if(nests_at_default));

}  // namespace keys

}  // namespace kvsim

namespace kvsim::stages::allocate::by_layer {
namespace {

const Declare allocate("allocate", "kind", "uniform", "how many entries each head may keep");
const Declare pyramid_beta("pyramid_beta", "number >= 1", "20",
                           "the last layer keeps 1/beta of the mean", tested("1 3.5"));
const Declare cosine_floor("cosine_floor", "number [0, 1]", "0.8",
                           "least value of the cosine profile", tested("0 0.3"));

Table<int64_t> same_for_owners(const AllocationRequest& request,
                               const std::vector<int64_t>& per_layer) {
  Table<int64_t> b(static_cast<int64_t>(per_layer.size()), request.owners);
  for (int64_t l = 0; l < b.rows(); ++l)
    for (int64_t& entry : b.row(l)) entry = per_layer[static_cast<size_t>(l)];
  return b;
}

/// Applies a rule b(l) to every layer of the request.
template <class Rule>
Table<int64_t> by_layer(const AllocationRequest& request, const Rule& rule) {
  std::vector<int64_t> per_layer;
  for (const AllocationLayer& layer : request.layers) per_layer.push_back(rule(layer.layer));
  return same_for_owners(request, per_layer);
}

class Uniform : public Allocate {
 public:
  Uniform() : Allocate({"allocate", "uniform", "B for every head", "", {}}) {}
  bool nests(const Settings&) const override { return true; }
  Table<int64_t> budgets(const AllocationRequest& request) const override {
    return by_layer(request, [&](int) { return request.budget; });
  }
};
const Register<Allocate, Uniform> uniform;

class Everything : public Allocate {
 public:
  Everything()
      : Allocate({"allocate", "everything", "n for every head, whatever the budget", "", {}}) {}
  bool ignores_budget() const override { return true; }
  bool keeps_everything() const override { return true; }
  bool spends_budget() const override { return false; }
  Table<int64_t> budgets(const AllocationRequest& request) const override {
    return by_layer(request, [&](int) { return request.entries; });
  }
};
const Register<Allocate, Everything> everything;

/// Linear from the lowest layer to the highest, as SnapKV's window on top (PyramidKV Eq. 3).
class Pyramid : public Allocate {
 public:
  Pyramid()
      : Allocate({"allocate",
                  "pyramid",
                  "linearly less with depth, window on top",
                  "PyramidKV",
                  {"pyramid_beta"}}) {}
  bool spends_budget() const override { return false; }
  Table<int64_t> budgets(const AllocationRequest& request) const override {
    const int64_t m = request.window;
    const int64_t n = request.entries;
    const int64_t layers = request.model_layers;
    const int64_t c = request.budget - m;
    if (c <= 0 || n < 2 * c || layers == 1)
      return by_layer(request, [&](int) { return request.budget; });
    int64_t low = request.settings->decimal(pyramid_beta).floor_divide(c);
    int64_t high = 2 * c - low;
    if (high >= n - m) {
      high = n - m;
      low = 2 * c - high;
    }
    const int64_t step = (high - low) / (layers - 1);
    return by_layer(request, [&](int l) { return m + high - l * step; });
  }
};
const Register<Allocate, Pyramid> pyramid;
const DeclareNote pyramid_note{
    {.of = "allocate=pyramid",
     .source = "PyramidKV repository; kvpress",
     .point = "kvpress counts the window inside the budget and often falls back "
              "to uniform; the original adds it on top",
     .reading = "the original, as in ReST-KV's code base; `pyramid-kvpress` is the "
                "other"}};

class PyramidKvpress : public Allocate {
 public:
  PyramidKvpress()
      : Allocate({"allocate",
                  "pyramid-kvpress",
                  "kvpress's pyramid, window inside",
                  "kvpress PyramidKVPress",
                  {"pyramid_beta"}}) {}
  bool spends_budget() const override { return false; }
  Table<int64_t> budgets(const AllocationRequest& request) const override {
    const bool like_kvpress = rounds_like_kvpress(*request.settings);
    const auto n = static_cast<double>(request.entries);
    const auto m = static_cast<double>(request.window);
    const double c = request.budget_is_count ? static_cast<double>(request.budget)
                     : like_kvpress          ? n * (1.0 - request.ratio.one_minus().value())
                                             : n * request.ratio.value();
    double low = c / request.settings->real(pyramid_beta);
    double high = 2 * c - low;
    if (high >= n - m) {
      high = n - m;
      low = 2 * c - high;
    }
    if (!(n >= high && high >= low && low >= m)) {
      const auto b = static_cast<int64_t>(std::nearbyint(c));
      return by_layer(request, [&](int) { return like_kvpress ? std::max<int64_t>(1, b) : b; });
    }
    const int layers = request.model_layers;
    const double step = layers > 1 ? (high - low) / (layers - 1) : 0;
    return by_layer(request,
                    [&](int l) { return static_cast<int64_t>(std::nearbyint(high - l * step)); });
  }
};
const Register<Allocate, PyramidKvpress> pyramid_kvpress;

class Cosine : public Allocate {
 public:
  Cosine()
      : Allocate({"allocate",
                  "cosine",
                  "cosine profile over depth with the exact total",
                  "PyramidInfer; KeepKV code",
                  {"cosine_floor"}}) {}
  bool across_layers() const override { return true; }
  Table<int64_t> budgets(const AllocationRequest& request) const override {
    const double floor = request.settings->real(cosine_floor);
    std::vector<double> weights;
    for (const AllocationLayer& layer : request.layers) {
      const double angle = std::numbers::pi * layer.layer / request.model_layers;
      weights.push_back(0.2 + 0.8 * (floor + (1 - floor) * (1 + std::cos(angle)) / 2));
    }
    const auto total = static_cast<int64_t>(weights.size()) * request.budget;
    return same_for_owners(request, apportion(total, weights, request.entries));
  }
};
const Register<Allocate, Cosine> cosine;
const DeclareNote cosine_note{{.of = "allocate=cosine",
                               .source = "PyramidInfer; KeepKV repository",
                               .point = "the profile does not sum to the budget",
                               .reading = "scaled to the exact total, as KeepKV's code does"}};

}  // namespace
}  // namespace kvsim::stages::allocate::by_layer
