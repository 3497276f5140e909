#include "sim/replay/cache_change.hpp"

#include <algorithm>

#include "sim/replay/compression.hpp"
#include "sim/stages/common_keys.hpp"
#include "sim/stages/quantize/quantize.hpp"
#include "sim/stages/schedule/schedule.hpp"

namespace kvsim {
namespace {

bool rounds_entries(const LayerWork& work, const KeptSets& kept, const Settings& settings) {
  const Quantize& rounding = quantizer(settings);
  return std::any_of(kept.owners.begin(), kept.owners.end(), [&](const auto& owner) {
    return rounding
               .count(settings, static_cast<int64_t>(owner.size()), work.trace().k.dim(2),
                      work.value_dim())
               .numbers > 0;
  });
}

}  // namespace

bool leaves_out_entries(const LayerWork& work, const KeptSets& kept) {
  return std::any_of(kept.owners.begin(), kept.owners.end(), [&](const auto& owner) {
    return static_cast<int64_t>(owner.size()) < work.entries();
  });
}

bool changes_entries(const LayerWork& work, const KeptSets& kept, const Settings& settings) {
  if (moves_positions(settings)) return true;
  if (leaves_out_entries(work, kept) && merges(settings)) return true;
  return rounds_entries(work, kept, settings);
}

bool leaves_cache_alone(const LayerWork& work, const KeptSets& kept, const Settings& settings) {
  const auto& schedule = chosen<Schedule>(settings);
  const bool goes_on = schedule.decodes() || schedule.repeats();
  if (goes_on && !kept.places.empty()) return false;
  return !leaves_out_entries(work, kept) && !rounds_entries(work, kept, settings);
}

}  // namespace kvsim
