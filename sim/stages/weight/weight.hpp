#pragma once
#include "sim/backend/layer_work.hpp"
#include "sim/stages/kind.hpp"

namespace kvsim {

/// s <- (s + weight_epsilon) * w (policies.md 5.8).
class Weight : public Kind {
 public:
  using Kind::Kind;
  virtual bool changes_nothing() const { return false; }
  /// w: [owners][n]; owners are query heads when `per_query_head`.
  virtual Table<double> weights(LayerWork& work, bool per_query_head) const = 0;
};

}  // namespace kvsim
