#pragma once
#include <vector>

#include "sim/replay/decode_run.hpp"

namespace kvsim {

/// One owner's attention at the step at work.
struct DecodeRun::Scratch {
  Table<double> logits;           ///< [heads][slots] of the slots' own keys
  Table<double> attention;        ///< [heads][slots] A^
  std::vector<float> moved_keys;  ///< [slots][d], positions=cache only

  void resize(int64_t heads, int64_t slots) {
    logits = Table<double>(heads, slots);
    attention = Table<double>(heads, slots);
  }
};

/// [n] 1: on the record's whitelist.
std::vector<uint8_t> listed_entries(const TraceInfo& info, const Settings& settings);

}  // namespace kvsim
