#pragma once
#include <span>

#include "sim/backend/layer_work.hpp"
#include "sim/stages/kind.hpp"
#include "sim/stages/parameter.hpp"

namespace kvsim {
namespace keys {
extern const Declare weight_epsilon;
}

/// s <- (s + weight_epsilon) * w (policies.md 5.8).
class Weight : public Kind {
 public:
  using Kind::Kind;
  bool nests(const Settings&) const override { return true; }  // sees no budget
  virtual bool changes_nothing() const { return false; }
  /// w of a slot with this value, read by `heads`; each `outputs` is W^h of one of them, [dv][D].
  virtual double of_value(std::span<const float> value,
                          std::span<const Table<float>> outputs) const = 0;
  virtual bool needs_outputs() const { return false; }
  /// w: [owners][n]; owners are query heads when `per_query_head`.
  virtual Table<double> weights(LayerWork& work, bool per_query_head) const = 0;
  /// Where the weights of candidates that are scored together depend on each other.
  virtual void settle(Range /*candidates*/, Table<double>& /*weights*/) const {}
};

}  // namespace kvsim
