#pragma once
#include <memory>
#include <span>

#include "sim/stages/kind.hpp"
#include "sim/stages/settings.hpp"

namespace kvsim {

/// Folds rows into one: sees the rows of J in ascending order and keeps no more than a few numbers
/// per column, so that whole-prompt scores need no n x n matrix.
class Aggregation {
 public:
  virtual ~Aggregation() = default;
  /// Row number j (0-based) of M; the first `visible` columns are visible to its query.
  virtual void add(int64_t j, std::span<const double> row, int64_t visible) = 0;
  virtual void finish(std::span<double> out) = 0;
};

/// Over queries (policies.md 5.4).
class Aggregate : public Kind {
 public:
  using Kind::Kind;
  virtual std::unique_ptr<Aggregation> start(const Settings& settings, int64_t rows,
                                             int64_t columns) const = 0;
  /// No aggregation: every step is scored by its own row (schedule=per-step).
  virtual bool per_step() const { return false; }
};

}  // namespace kvsim
