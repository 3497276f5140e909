#include "run/study/study_plan.hpp"
#include "run/trace/trace_uses.hpp"
#include "sim/core/error.hpp"
#include "sim/policy/presets.hpp"
#include "sim/policy/record_rules.hpp"

namespace kvsim {
namespace {

constexpr const char* kBudget = "0.5";

/// Which presets the trace can serve; the same check as before a replay. Files that a preset needs
/// are not named yet, and so none is opened.
std::vector<TraceUse> preset_uses(const TraceReader& trace) {
  std::vector<TraceUse> uses;
  StudyOptions options;
  options.budgets = {Budget::parse(kBudget)};
  options.layers = trace.info().layers;
  for (const Preset& preset : presets()) {
    options.records = {{preset.name, preset.variant, preset_settings(preset)}};
    TraceUse use{preset_title(preset), true, ""};
    for (const std::string& file : file_keys(options.records.front().settings))
      use.detail = "with " + file + "=FILE";
    try {
      check_study(trace, options);
    } catch (const Error& error) {
      const Error::Parts& parts = error.parts();
      use.served = false;
      use.detail = parts.expected.empty() ? parts.what : "needs " + parts.expected;
    }
    uses.push_back(std::move(use));
  }
  return uses;
}

const bool preset_uses_registered = register_trace_uses(
    {.rank = 2, .title = std::string("preset, at a budget of ") + kBudget, .list = preset_uses});

}  // namespace
}  // namespace kvsim
