#include "sim/stages/protect/protect.hpp"

#include <algorithm>

#include "sim/stages/common_keys.hpp"
#include "sim/stages/indicator/indicator.hpp"
#include "sim/stages/merge/merge.hpp"
#include "sim/stages/spans.hpp"

namespace kvsim {
namespace keys {

const Declare whitelist{{.key = "whitelist",
                         .place = 600,
                         .type = ValueType::text,
                         .fallback = "none",
                         .meaning = "spans or ranges a-b joined by + that every head keeps",
                         .unit = "spans",
                         .fault = span_list_fault,
                         .may_be_none = true,
                         .always = true,
                         .only_with = {selects_entries_if},
                         .test_values = {"13-15", "middle"},
                         .nests = nests_always}};
const Declare first_layer_recent{{.key = "first_layer_recent",
                                  .place = 603,
                                  .type = ValueType::share,
                                  .fallback = "0",
                                  .meaning = "newest entries that the model's first layer "
                                             "protects, where more than `recent`",
                                  .unit = "entries",
                                  .always = true,
                                  .only_with = {selects_entries_if},
                                  .test_values = {"4", "0.6"}}};
const Declare std_keep{{.key = "std_keep",
                        .place = 604,
                        .type = ValueType::real,
                        .fallback = "0",
                        .meaning = "share of B for entries of largest deviation (RoCo)",
                        .high = 1,
                        .always = true,
                        .only_with = {scores_rows_if, selects_entries_if},
                        .test_values = {"0.4"},
                        .nests = nests_at_default}};
const Declare protected_rank{{.key = "protected_rank",
                              .place = 609,
                              .type = ValueType::word,
                              .fallback = "guaranteed",
                              .meaning = "protected entries are kept, or compete at the layer's "
                                         "largest score",
                              .words = {"guaranteed", "layer-max"}}};

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
