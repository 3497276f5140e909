#include "sim/stages/merge/merge.hpp"

#include "sim/stages/parameter.hpp"

namespace kvsim {
namespace keys {

const Declare merge_threshold("merge_threshold", "number [-1, 1]", "0.8",
                              "cosine of keys above which an entry is merged");

}  // namespace keys

}  // namespace kvsim

namespace kvsim::stages::merge::merge {
namespace {

const Declare merge("merge", "kind", "drop", "what becomes of entries that lose their place");
const Declare score_estimate("score_estimate", "kind", "ema",
                             "how the scores of the next queries are predicted",
                             only_with({"merge", [](const Kind& kind) {
                                          return dynamic_cast<const Merge&>(kind).estimates() !=
                                                 EstimateLines::none;
                                        }}));

}  // namespace
}  // namespace kvsim::stages::merge::merge

namespace kvsim {

MergeOwner::Step& join(MergeOwner& owner, int64_t from, int64_t into) {
  SlotCache& cache = *owner.cache;
  MergeOwner::Step& step = owner.steps.emplace_back();
  step.from = from;
  step.into = into;
  step.entries_from = cache.entries(from);
  step.entries_into = cache.entries(into);
  cache.absorb(from, into);
  return step;
}

}  // namespace kvsim
