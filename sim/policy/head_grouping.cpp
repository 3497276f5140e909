#include "sim/policy/head_grouping.hpp"

#include "sim/stages/common_keys.hpp"

namespace kvsim {

HeadGrouping::HeadGrouping(const LayerWork& work, const Settings& settings)
    : group_(chosen<Group>(settings)),
      of_groups_(!has_query_heads(chosen<Indicator>(settings).axes())),
      combines_(!of_groups_ && group_.span() != GroupSpan::head),
      whole_layer_(combines_ && group_.span() == GroupSpan::layer),
      of_query_heads_(per_query_head(settings)), heads_(work.group_size()),
      kv_heads_(work.kv_heads()) {}

Range HeadGrouping::owners(int kv_head, int unit) const {
  if (whole_layer_) return {0, of_query_heads_ ? kv_heads_ * heads_ : kv_heads_};
  const int64_t owner = of_query_heads_ ? kv_head * heads_ + unit : kv_head;
  return {owner, owner + 1};
}

}  // namespace kvsim
