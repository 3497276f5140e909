#pragma once
#include <vector>

#include "sim/replay/decode_run.hpp"
#include "sim/replay/slots.hpp"

namespace kvsim {

/// One owner's attention at the step at work.
struct DecodeRun::Scratch {
  Table<double> logits;           ///< [heads][slots] of the slots' own keys, where merging asks
  Table<double> attention;        ///< [heads][slots] A^, where something asks for it
  std::vector<float> moved_keys;  ///< [rows][d], positions=cache only
  RotationMemory rotation;
  Buffer<float> queries, outputs;  ///< [heads][d], [heads][dv]
  Buffer<float> rows, weights;     ///< [heads][rows of the cache] logits, log-weights
  Buffer<float> shares;            ///< [heads][rows of the cache] attention
  std::vector<double> scores;      ///< [slots], of those that may leave
  std::vector<double> gains;       ///< importance of the entries present
};

/// [n] 1: on the record's whitelist.
std::vector<uint8_t> listed_entries(const TraceInfo& info, const Settings& settings);

}  // namespace kvsim
