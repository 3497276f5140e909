#include "sim/stages/stages.hpp"

namespace kvsim::keys {

const Declare period("period", "count >= 1 positions", "64",
                     "positions from one compression to the next");
const Declare chunk("chunk", "count >= 1 positions", "256",
                    "prompt positions that come before the cache is compressed again", tested("7"));
const Declare chunk_scope("chunk_scope", "cache | chunk", "cache",
                          "what is compressed behind a chunk: all that is left, to the budget, or "
                          "the chunk alone, to its share of it");
const Declare evict_batch("evict_batch", "share > 0 slots", "1",
                          "slots that leave at once when a head is over its budget");
const Declare keep_prompt("keep_prompt", "flag", "no",
                          "what was kept of the prompt stays while later slots leave");
const Declare buffer("buffer", "share >= 0 slots", "0",
                     "slots that a head may hold beside its budget until it is compressed to it",
                     tested("2 0.5"));

}  // namespace kvsim::keys

namespace kvsim::stages::schedule::schedule {

const Declare schedule("schedule", "kind", "prefill", "when compression runs");

struct Prefill : Schedule {
  Prefill() : Schedule({"schedule", "prefill", "once, when the prompt is complete", ""}) {}
  bool once() const override { return true; }
};

struct PerStep : Schedule {
  PerStep()
      : Schedule({"schedule", "per-step", "anew for each later step, in hindsight (oracle-step)",
                  "kvsim"}) {}
  bool per_step() const override { return true; }
  bool looks_ahead() const override { return true; }
  bool at_each_step() const override { return true; }
};

struct Reads : Schedule {
  Reads()
      : Schedule({"schedule", "reads",
                  "nothing leaves; every later step reads the set that its own query chooses",
                  "Quest"}) {}
  bool per_step() const override { return true; }
  bool evicts() const override { return false; }
  bool at_each_step() const override { return true; }
};

struct Decode : Schedule {
  Decode()
      : Schedule({"schedule", "decode", "the budget is held at every step", "H2O; KeepKV",
                  "evict_batch keep_prompt buffer", "all queries n..N-1"}) {}
  bool decodes() const override { return true; }
};

struct Periodic : Schedule {
  Periodic()
      : Schedule({"schedule", "periodic", "the full cache is compressed anew every `period`",
                  "KeepKV", "period", "the observing queries before each compression"}) {}
  bool repeats() const override { return true; }
};

struct Chunked : Schedule {
  Chunked()
      : Schedule({"schedule", "chunked", "after every `chunk` of the prompt; what left is gone",
                  "KeyDiff; kvpress BlockPress, ChunkPress", "chunk chunk_scope"}) {}
  bool nests(const Settings&) const override { return false; }
  bool in_chunks() const override { return true; }
};
const Register<Schedule, Prefill, PerStep, Reads, Decode, Periodic, Chunked> registered;

}  // namespace kvsim::stages::schedule::schedule
