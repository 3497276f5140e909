#pragma once
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <span>

#include "analysis/dataset.hpp"
#include "analysis/measure.hpp"

namespace kvsim::test {

/// Adds a declared variable; a coordinate brings its dimension along.
inline void add(Dataset& dataset, const char* name, VariableValues values) {
  const VariableDeclaration& declaration = declared(name);
  if (declaration.is_coordinate())
    dataset.add_dimension(
        name, std::visit([](const auto& v) { return static_cast<int64_t>(v.size()); }, values));
  Variable variable = make_variable(declaration, dataset);
  variable.values = std::move(values);
  dataset.add(std::move(variable));
}

/// Of one length, and no two further apart than that; NaN is like NaN.
inline bool same_numbers(std::span<const double> a, std::span<const double> b,
                         double tolerance = 0) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [&](double x, double y) {
    return x == y || std::fabs(x - y) <= tolerance || (std::isnan(x) && std::isnan(y));
  });
}

/// The same to the bit.
inline void check_same(const Variable& a, const Variable& b) {
  INFO(a.name);
  CHECK(a.name == b.name);
  CHECK(a.dims == b.dims);
  const auto* x = std::get_if<std::vector<double>>(&a.values);
  if (x == nullptr) {
    CHECK(a.values == b.values);
    return;
  }
  const auto& y = std::get<std::vector<double>>(b.values);
  REQUIRE(x->size() == y.size());  // as bytes: NaN equals NaN
  CHECK(std::memcmp(x->data(), y.data(), x->size() * sizeof(double)) == 0);
}

}  // namespace kvsim::test
