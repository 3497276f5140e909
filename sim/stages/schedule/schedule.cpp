#include "sim/stages/schedule/schedule.hpp"

#include "sim/stages/parameter.hpp"

namespace kvsim {
namespace {

const Declare schedule{{.key = "schedule",
                        .place = 1201,
                        .type = ValueType::kind,
                        .fallback = "prefill",
                        .meaning = "when compression runs"}};

struct Prefill : Schedule {
  Prefill() : Schedule({"schedule", "prefill", "once, when the prompt is complete", "", {}}) {}
};
const Register<Schedule, Prefill> prefill;

struct PerStep : Schedule {
  PerStep()
      : Schedule({"schedule", "per-step", "anew for each later step, in hindsight (oracle-step)",
                  "kvsim", {}}) {}
  bool per_step() const override { return true; }
};
const Register<Schedule, PerStep> per_step;

}  // namespace
}  // namespace kvsim
