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

const bool registered = [] {
  const auto add = [](KindInfo info, Schedule::Traits traits) {
    Kinds<Schedule>::add(std::make_unique<Schedule>(std::move(info), traits));
  };
  add({"prefill", "once, when the prompt is complete", ""}, {.once = true});
  add({"per-step", "anew for each later step, in hindsight (oracle-step)", "kvsim"},
      {.per_step = true, .looks_ahead = true});
  add({"reads", "nothing leaves; every later step reads the set that its own query chooses",
       "Quest"},
      {.per_step = true, .evicts = false});
  add({"decode", "the budget is held at every step", "H2O; KeepKV",
       "evict_batch keep_prompt buffer", "all queries n..N-1"},
      {.decodes = true});
  add({"periodic", "the full cache is compressed anew every `period`", "KeepKV", "period",
       "the observing queries before each compression"},
      {.repeats = true});
  add({"chunked", "after every `chunk` of the prompt; what left is gone",
       "KeyDiff; kvpress BlockPress, ChunkPress", "chunk chunk_scope"},
      {.in_chunks = true});
  return true;
}();

}  // namespace kvsim::stages::schedule::schedule
