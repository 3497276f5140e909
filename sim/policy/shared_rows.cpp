#include "sim/policy/shared_rows.hpp"

namespace kvsim {

void SharedRows::start(const AttentionBlock& block, int64_t first_row) {
  const std::tuple<int, int64_t, int64_t> wanted{block.kv_head, first_row, block.rows};
  if (prepared_ == wanted) return;
  rows_->start(block);
  prepared_ = wanted;
}

std::shared_ptr<SharedRows> RowsOfLayer::rows(const Settings& settings, const Segment& segment) {
  const auto& indicator = Kinds<Indicator>::find(settings.text("indicator"));
  std::string name = indicator.info().name;
  for (const std::string& key : indicator.info().keys) name += "," + settings.text(key);
  // These decide which blocks come, and in which order.
  for (const char* key : {"queries", "granularity", "group", "order"}) {
    name += "," + settings.text(key);
  }
  const Key key{name, segment.candidates.begin, segment.candidates.end, segment.positions};
  auto& found = rows_[key];
  if (found == nullptr) {
    found = std::make_shared<SharedRows>(indicator.rows(work_, settings, segment));
  }
  return found;
}

}  // namespace kvsim
