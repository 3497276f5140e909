#include "sim/policy/shared_rows.hpp"

#include <set>

namespace kvsim {

void SharedRows::start(const AttentionBlock& block, int64_t first_row) {
  const std::tuple<int, int64_t, int64_t> wanted{block.kv_head, first_row, block.rows};
  if (prepared_ == wanted) return;
  rows_->start(block);
  prepared_ = wanted;
}

std::shared_ptr<SharedRows> RowsOfLayer::rows(const Settings& settings, const Segment& segment,
                                              bool rows_outer) {
  const auto& indicator = chosen<Indicator>(settings);
  // Rows can depend on nothing but what they are given: the values that name them.
  std::set<std::string> keys(indicator.info().keys.begin(), indicator.info().keys.end());
  keys.insert({"indicator", "queries"});
  const Settings given = settings.only(keys);
  // The pass decides in which order blocks come: it is shared by those who want the same one.
  const Name name{given.values(),
                  segment.candidates.begin,
                  segment.candidates.end,
                  segment.positions,
                  segment.probe,
                  segment.probe_tokens,
                  rows_outer};
  auto& found = rows_[name];
  if (found == nullptr) {
    found = std::make_shared<SharedRows>(indicator.rows(work_, given, segment));
  }
  return found;
}

}  // namespace kvsim
