#include "sim/replay/layer_replay.hpp"

#include "sim/stages/schedule/schedule.hpp"

namespace kvsim {

LayerReplay::Split::Split(const LayerKept& kept, const std::vector<Record>& records)
    : prefill(kept.size()), decode(kept.size()), periodic(kept.size()) {
  for (size_t r = 0; r < kept.size(); ++r) {
    const auto& schedule = chosen<Schedule>(records[r].settings);
    for (const auto& cell : kept[r]) {
      const bool fixed = cell->places.empty();  // nothing ever leaves: the same by every schedule
      const bool decodes = schedule.decodes() && !fixed;
      const bool repeats = schedule.repeats() && !fixed;
      prefill[r].push_back(decodes || repeats ? nullptr : cell);
      decode[r].push_back(decodes ? cell : nullptr);
      periodic[r].push_back(repeats ? cell : nullptr);
    }
  }
}

LayerReplay::LayerReplay(LayerWork& work, PeriodicPolicies& periodic, const LayerKept& kept,
                         const std::vector<Record>& records, const PrefillOptions& options)
    : split_(kept, records), prefill_(work, split_.prefill, records, options),
      decode_(work, split_.decode, records, options),
      periodic_(work, periodic, split_.periodic, records, options) {}

const ReplayOutcome& LayerReplay::outcome(size_t number) const {
  if (number < prefill_.outcomes().size()) return prefill_.outcomes()[number];
  number -= prefill_.outcomes().size();
  if (number < decode_.outcomes().size()) return decode_.outcomes()[number];
  return periodic_.outcomes()[number - decode_.outcomes().size()];
}

void LayerReplay::run(const std::function<void(const StepBlock&)>& sink,
                      const PeriodicReplay::EpochSink& epochs) {
  const auto numbered_from = [&](size_t first) {
    return [&sink, first](const StepBlock& block) {
      StepBlock moved = block;
      for (OutcomeBlock& view : moved.outcomes) view.outcome += static_cast<int>(first);
      sink(moved);
    };
  };
  prefill_.run(sink);
  decode_.run(numbered_from(prefill_.outcomes().size()));
  periodic_.run(numbered_from(prefill_.outcomes().size() + decode_.outcomes().size()), epochs);
}

}  // namespace kvsim
