#include "io/trace_reader.hpp"
#include "run/trace/trace_uses.hpp"
#include "sim/core/error.hpp"
#include "sim/policy/policy_run.hpp"
#include "sim/policy/presets.hpp"
#include "sim/policy/record_rules.hpp"
#include "sim/stages/side_files.hpp"

namespace kvsim {
namespace {

constexpr const char* kBudget = "0.5";

/// No side file is opened to say what a trace is enough for; the texts are the trace's own.
class NoFiles : public SideFiles {
 public:
  explicit NoFiles(const std::string& trace) : texts_(TraceReader(trace).token_text()) {}
  Table<double> scores(const std::string&, int, int64_t, int64_t) const override { return {}; }
  Table<double> table(const std::string&, int64_t, int64_t) const override { return {}; }
  std::vector<std::string> token_text() const override { return texts_; }

 private:
  std::vector<std::string> texts_;
};

/// Which presets the trace can serve; the same check as before a replay.
std::vector<TraceUse> preset_uses(const TraceInfo& info) {
  std::vector<TraceUse> uses;
  const NoFiles files(info.path);
  for (const Preset& preset : presets()) {
    const Record record{preset.name, preset.variant, preset_settings(preset)};
    TraceUse use{preset_title(preset), true, ""};
    for (const std::string& file : file_keys(record.settings))
      use.detail = "with " + file + "=FILE";
    try {
      PolicyRun({record}, {Budget::parse(kBudget)}, info, info.layers, 0, files).check();
    } catch (const Error& error) {
      const Error::Parts& parts = error.parts();
      use.served = false;
      use.detail = parts.expected.empty() ? parts.what : "needs " + parts.expected;
    }
    uses.push_back(std::move(use));
  }
  return uses;
}

const bool registered = register_trace_uses(
    {.rank = 2, .title = std::string("preset, at a budget of ") + kBudget, .list = preset_uses});

}  // namespace
}  // namespace kvsim
