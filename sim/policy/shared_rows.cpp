#include "sim/policy/shared_rows.hpp"

#include <set>

namespace kvsim {

void SharedRows::start(const AttentionBlock& block, int64_t first_row) {
  const std::tuple<int, int64_t, int64_t> wanted{block.kv_head, first_row, block.rows};
  if (prepared_ == wanted) return;
  rows_->start(block);
  prepared_ = wanted;
}

std::shared_ptr<SharedRows> RowsOfLayer::rows(const Settings& settings, const Segment& segment) {
  const auto& indicator = chosen<Indicator>(settings);
  // Rows can depend on nothing but what they are given: the values that name them.
  std::set<std::string> keys(indicator.info().keys.begin(), indicator.info().keys.end());
  keys.insert({"indicator", "queries"});
  const Settings given = settings.only(keys);
  // These decide which blocks come, and in which order.
  keys.insert({"granularity", "group", "order"});
  const Name name{settings.only(keys).values(), segment.candidates.begin, segment.candidates.end,
                  segment.positions};
  auto& found = rows_[name];
  if (found == nullptr) {
    found = std::make_shared<SharedRows>(indicator.rows(work_, given, segment));
  }
  return found;
}

}  // namespace kvsim
