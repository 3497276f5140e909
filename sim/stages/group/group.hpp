#pragma once
#include <span>
#include <vector>

#include "sim/stages/kind.hpp"

namespace kvsim {

enum class GroupSpan { head, kv_group, layer };

/// Over the query heads that share an owner (policies.md 5.6).
class Group : public Kind {
 public:
  using Kind::Kind;
  bool nests(const Settings&) const override { return true; }  // sees no budget
  virtual GroupSpan span() const { return GroupSpan::kv_group; }
  /// Is the group of summed rows the sum of grouped rows?
  virtual bool linear() const { return true; }
  /// Combines one more head's row into `out`, number `index` of `count`.
  virtual void add(int index, int count, std::span<const double> head,
                   std::span<double> out) const = 0;
};

}  // namespace kvsim
