#include "sim/stages/schedule/schedule.hpp"

#include "sim/stages/parameter.hpp"

namespace kvsim {
namespace keys {

const Declare period{{.key = "period",
                      .place = 1202,
                      .type = ValueType::count,
                      .fallback = "64",
                      .meaning = "positions from one compression to the next",
                      .unit = "positions",
                      .low = 1}};
const Declare evict_batch{{.key = "evict_batch",
                           .place = 1203,
                           .type = ValueType::share,
                           .fallback = "1",
                           .meaning = "slots that leave at once when a head is over its budget",
                           .unit = "slots",
                           .low = 0,
                           .low_open = true}};
const Declare keep_prompt{{.key = "keep_prompt",
                           .place = 1204,
                           .type = ValueType::flag,
                           .fallback = "no",
                           .meaning = "what was kept of the prompt stays while later slots leave"}};
const Declare buffer{{.key = "buffer",
                      .place = 1205,
                      .type = ValueType::share,
                      .fallback = "0",
                      .meaning = "slots that a head may hold beside its budget until it is "
                                 "compressed to it",
                      .unit = "slots",
                      .test_values = {"2", "0.5"}}};

}  // namespace keys

}  // namespace kvsim

namespace kvsim::stages::schedule::schedule {
namespace {

const Declare schedule{{.key = "schedule",
                        .place = 1201,
                        .type = ValueType::kind,
                        .fallback = "prefill",
                        .meaning = "when compression runs"}};

struct Prefill : Schedule {
  Prefill() : Schedule({"schedule", "prefill", "once, when the prompt is complete", "", {}}) {}
  bool once() const override { return true; }
};
const Register<Schedule, Prefill> prefill;

struct PerStep : Schedule {
  PerStep()
      : Schedule({"schedule",
                  "per-step",
                  "anew for each later step, in hindsight (oracle-step)",
                  "kvsim",
                  {}}) {}
  bool per_step() const override { return true; }
  bool looks_ahead() const override { return true; }
  bool at_each_step() const override { return true; }
};
const Register<Schedule, PerStep> per_step;

struct Reads : Schedule {
  Reads()
      : Schedule({"schedule",
                  "reads",
                  "nothing leaves; every later step reads the set that its own query chooses",
                  "Quest",
                  {}}) {}
  bool per_step() const override { return true; }
  bool evicts() const override { return false; }
  bool at_each_step() const override { return true; }
};
const Register<Schedule, Reads> reads;

struct Decode : Schedule {
  Decode()
      : Schedule({"schedule",
                  "decode",
                  "the budget is held at every step",
                  "H2O; KeepKV",
                  {"evict_batch", "keep_prompt", "buffer"},
                  "all queries n..N-1"}) {}
  bool decodes() const override { return true; }
};
const Register<Schedule, Decode> decode;

struct Periodic : Schedule {
  Periodic()
      : Schedule({"schedule",
                  "periodic",
                  "the full cache is compressed anew every `period`",
                  "KeepKV",
                  {"period"},
                  "the observing queries before each compression"}) {}
  bool repeats() const override { return true; }
};
const Register<Schedule, Periodic> periodic;

}  // namespace
}  // namespace kvsim::stages::schedule::schedule
