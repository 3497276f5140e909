#pragma once
#include "sim/stages/kind.hpp"
#include "sim/stages/settings.hpp"

namespace kvsim {

/// What becomes of entries that lose their place (policies.md 9).
class Merge : public Kind {
 public:
  using Kind::Kind;
};

}  // namespace kvsim
