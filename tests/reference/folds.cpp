// Stages that fold numbers into one, or scale them: policies.md 5.4, 5.6 to 5.8.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "tests/reference/kinds.hpp"

namespace kvsim::reference {
namespace {

double total(const Row& x) { return std::accumulate(x.begin(), x.end(), 0.0); }
double mean_of(const Row& x) { return total(x) / static_cast<double>(x.size()); }
double largest_of(const Row& x) { return *std::max_element(x.begin(), x.end()); }

double mean(const PolicyCase&, const Column& column) { return mean_of(column.x); }
double sum(const PolicyCase&, const Column& column) { return total(column.x); }
double last(const PolicyCase&, const Column& column) { return column.x.back(); }
double most(const PolicyCase&, const Column& column) { return largest_of(column.x); }

double mean_visible(const PolicyCase&, const Column& column) {
  const auto seen = std::count(column.seen.begin(), column.seen.end(), true);
  return seen > 0 ? total(column.x) / static_cast<double>(seen) : 0;
}

/// The newest when J has no such row.
double single(const PolicyCase& c, const Column& column) {
  return column
      .x[std::min(column.x.size() - 1, static_cast<size_t>(c.settings.count("single_row")))];
}

double power_mean(const PolicyCase& c, const Column& column) {
  const auto p = c.settings.real("power");
  double out = 0;
  for (const double x : column.x)
    out += std::pow(std::max(x, 0.0), p) / static_cast<double>(column.x.size());
  return std::pow(out, 1 / p);
}

double ema_of(double alpha, const Row& x) {
  double out = x[0];
  // What has weight 0 does not count, even where it is infinite.
  for (size_t k = 1; k < x.size(); ++k) out = alpha * x[k] + (alpha < 1 ? (1 - alpha) * out : 0);
  return out;
}
double ema(const PolicyCase& c, const Column& column) {
  return ema_of(c.settings.real("ema_alpha"), column.x);
}
double ema_inverse(const PolicyCase& c, const Column& column) {
  return ema_of(c.settings.real("ema_alpha"), {column.x.rbegin(), column.x.rend()});
}

double linear(const PolicyCase& c, const Column& column) {
  const double newest = c.settings.real("linear_newest");
  const auto m = static_cast<double>(column.x.size());
  double out = 0;
  for (size_t k = 0; k < column.x.size(); ++k)
    out += column.x[k] * (m == 1 ? newest : 1 + (newest - 1) * static_cast<double>(k) / (m - 1)) /
           m;
  return out;
}

double mean_variance(const PolicyCase& c, const Column& column) {
  const double center = mean_of(column.x);
  double squares = 0;
  for (const double x : column.x) squares += (x - center) * (x - center);
  const double variance = column.x.size() == 1
                              ? 0
                              : squares / (static_cast<double>(column.x.size()) - 1);
  return center + c.settings.real("variance_weight") * variance;
}

const References<AggregateReference> aggregates{
    {"mean", {mean}},     {"mean-visible", {mean_visible}},
    {"sum", {sum}},       {"last", {last}},
    {"each", {last}},     {"single", {single}},
    {"max", {most}},      {"power-mean", {power_mean}},
    {"ema", {ema}},       {"ema-inverse", {ema_inverse}},
    {"linear", {linear}}, {"mean-variance", {mean_variance}},
};

const References<GroupReference> groups{
    {"none", {}},
    {"mean", {mean_of}},
    {"sum", {total}},
    {"max", {largest_of}},
    {"root-mean-square", {[](const Row& heads) {
       double squares = 0;
       for (const double x : heads) squares += x * x / static_cast<double>(heads.size());
       return std::sqrt(squares);
     }}},
    {"layer-mean", {.of = mean_of, .whole_layer = true}},
};

const References<PriorReference> priors{
    {"none", {}},
    {"constant", {[](const Settings& s, const Row&) { return s.real("prior_value"); }}},
    {"head-mean", {[](const Settings&, const Row& row) { return mean_of(row); }}},
    {"mean-share",
     {[](const Settings& s, const Row& row) { return s.real("prior_share") * mean_of(row); }}},
};

/// Norm of a value, or of its projection.
template <bool kProjected, bool kL1>
double norm(LayerFacts& facts, int h, int64_t i) {
  return facts.value_norm(h, i, kProjected, kL1);
}

const References<WeightReference> weights{
    {"none", {}},
    {"value-l1", {norm<false, true>}},
    {"value-l2", {norm<false, false>}},
    {"value-l1-max",
     {.of = norm<false, true>,
      .settle =
          [](Row& w) {
  if (!w.empty()) w.assign(w.size(), *std::max_element(w.begin(), w.end()));
      }}},
    {"projected-l1", {norm<true, true>}},
    {"projected-l2", {norm<true, false>}},
    };

const References<NormalizeReference> divisors{
    {"none", {[](double, double, double) { return 1.0; }}},
    {"head-sum", {[](double head, double, double) { return head; }}},
    {"layer-sum", {[](double, double layer, double) { return layer; }}},
    {"token-heads", {[](double, double, double entry) { return entry; }}},
    {"add-head-mean", {[](double, double, double) { return 1.0; }, true}},
};

}  // namespace
}  // namespace kvsim::reference
