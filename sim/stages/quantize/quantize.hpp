#pragma once
#include <cstdint>
#include <string>

#include "sim/core/array.hpp"
#include "sim/stages/kind.hpp"
#include "sim/stages/parameter.hpp"
#include "sim/stages/settings.hpp"

namespace kvsim {
namespace keys {
extern const Declare quant_bits, quant_residual;
}

/// How much of one head's slots is quantised; for the memory model.
struct QuantizedCount {
  int64_t numbers = 0;   ///< quantised numbers, keys and values
  int64_t groups = 0;    ///< groups, short ones included
  int64_t outliers = 0;  ///< of the numbers, those stored as they are with their place
  int64_t levels = 0;    ///< fitted levels that are stored
};

/// Rounds the kept entries of one head to few bits (policies.md 11). Runs once at each compression,
/// after merging, on the entries in ascending position.
class Quantize : public Kind {
 public:
  using Kind::Kind;
  bool nests(const Settings&) const override { return true; }  // nothing is chosen by it
  virtual bool changes_entries() const { return true; }
  bool goes_on() const override { return !changes_entries(); }
  /// Replaces k [b][d] and v [b][dv] by what their codes stand for, in float32 arithmetic.
  virtual void apply(const Settings& settings, Table<float>& k, Table<float>& v) const = 0;
  virtual QuantizedCount count(const Settings& settings, int64_t slots, int64_t head_dim,
                               int64_t value_dim) const = 0;
  /// Fault of the settings for this kind, or nothing.
  virtual std::string fault(const Settings&) const { return {}; }
};

/// The kind that `quantize` of the record names.
const Quantize& quantizer(const Settings& settings);

}  // namespace kvsim
