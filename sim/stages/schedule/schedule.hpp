#pragma once
#include "sim/stages/kind.hpp"
#include "sim/stages/parameter.hpp"
#include "sim/stages/settings.hpp"

namespace kvsim {
namespace keys {
extern const Declare period, evict_batch, keep_prompt, buffer;
}

/// When compression runs (policies.md 12).
class Schedule : public Kind {
 public:
  using Kind::Kind;
  bool nests(const Settings&) const override { return true; }  // nothing is chosen by it
  virtual bool once() const { return false; }      ///< one compression, then never again
  virtual bool per_step() const { return false; }  ///< a set chosen anew at each later step
  virtual bool evicts() const { return true; }     ///< what is not kept is not held either
  virtual bool decodes() const { return false; }   ///< slots leave at every later step
  virtual bool repeats() const { return false; }   ///< the full cache is compressed anew
};

}  // namespace kvsim
