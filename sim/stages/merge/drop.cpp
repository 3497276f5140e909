#include "sim/stages/merge/merge.hpp"

namespace kvsim::stages::merge::drop {
namespace {

struct Drop : Merge {
  Drop() : Merge({"merge", "drop", "nothing remains of them", "", {}}) {}
  bool merges() const override { return false; }
  void apply(MergeRequest&) const override {}
};
const Register<Merge, Drop> drop;

}  // namespace
}  // namespace kvsim::stages::merge::drop
