#include "sim/stages/protect/protect.hpp"

#include <algorithm>

#include "sim/stages/common_keys.hpp"
#include "sim/stages/indicator/indicator.hpp"
#include "sim/stages/merge/merge.hpp"
#include "sim/stages/spans.hpp"

namespace kvsim {
namespace keys {

const Declare sinks("sinks", "count >= 0 entries", "0", "first entries that are protected", always,
                    only_with(selects_entries_if), lets_nest, tested("1 3"));
const Declare recent("recent", "share >= 0 entries", "0",
                     "newest entries that are protected, but scored all the same", always,
                     only_with(selects_entries_if), tested("2 0.3"));
const Declare whitelist("whitelist", "text spans or none", "none",
                        "spans or ranges a-b joined by + that every head keeps", always,
                        only_with(selects_entries_if), checked_by(span_list_fault), lets_nest,
                        tested("13-15 middle"));
const Declare first_layer_recent(
    "first_layer_recent", "share >= 0 entries", "0",
    "newest entries that the model's first layer protects, where more than `recent`", always,
    only_with(selects_entries_if), tested("4 0.6"));
const Declare std_keep("std_keep", "number [0, 1]", "0",
                       "share of B for entries of largest deviation (RoCo)", always,
                       only_with(scores_rows_if, selects_entries_if),
                       lets_nest_if(nests_at_default), tested("0.4"));
const Declare protected_rank("protected_rank", "guaranteed | layer-max", "guaranteed",
                             "protected entries are kept, or compete at the layer's largest score");

}  // namespace keys

int64_t newest_protected(const Settings& settings, int layer, int64_t budget) {
  const int64_t recent = settings.share(keys::recent, budget);
  return layer > 0 ? recent : std::max(recent, settings.share(keys::first_layer_recent, budget));
}

std::vector<uint32_t> protected_entries(const ProtectRequest& request) {
  const Settings& settings = *request.settings;
  const Range range = request.range;
  std::vector<uint32_t> granted;
  std::vector<uint8_t> taken(static_cast<size_t>(range.size()), 0);
  const auto grant = [&](int64_t i) {
    uint8_t& mine = taken[static_cast<size_t>(i - range.begin)];
    if (!mine) granted.push_back(static_cast<uint32_t>(i));
    mine = 1;
  };
  for (const Range& wanted : *request.whitelist)
    for (int64_t i = std::max(wanted.begin, range.begin); i < std::min(wanted.end, range.end); ++i)
      grant(i);
  if (request.first)
    for (int64_t i = range.begin; i < std::min(settings.count(keys::sinks), range.end); ++i)
      grant(i);
  const int64_t recent = request.last ? newest_protected(settings, request.layer, request.budget)
                                      : 0;
  const int64_t newest = std::max(request.window, recent);
  for (int64_t i = range.end; i-- > std::max(range.begin, range.end - newest);) grant(i);
  if (request.deviation.empty()) return granted;

  const int64_t spread = settings.decimal(keys::std_keep).floor_times(request.budget) - recent;
  std::vector<uint32_t> others;
  for (int64_t i = range.begin; i < range.end; ++i)
    if (!taken[static_cast<size_t>(i - range.begin)] && request.candidate[static_cast<size_t>(i)])
      others.push_back(static_cast<uint32_t>(i));
  const auto count = static_cast<size_t>(
      std::clamp<int64_t>(spread, 0, static_cast<int64_t>(others.size())));
  std::partial_sort(others.begin(), others.begin() + static_cast<int64_t>(count), others.end(),
                    [&](uint32_t a, uint32_t b) {
    const double x = request.deviation[a];
    const double y = request.deviation[b];
    return x != y ? x > y : a > b;
  });
  granted.insert(granted.end(), others.begin(), others.begin() + static_cast<int64_t>(count));
  return granted;
}

}  // namespace kvsim
