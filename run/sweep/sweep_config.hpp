#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "run/study/study.hpp"

namespace kvsim {

/// Contents of a sweep file, with all grids expanded.
///
///   traces  = ["../sample.h5"]         # from the folder of this file
///   budgets = [0.1, 0.2, 512]          # as on the command line: a ratio, or tokens per KV head
///   seeds   = [0, 1]                   # default 0
///   [[policy]]
///   preset    = "restkv"
///   ema_alpha = [0.1, 0.3, 0.5]        # a list is an axis; the last key varies fastest
///   aws_beta  = [500, 2000]
///   zip       = ["smooth", "kernel"]   # axes that go along together instead of being crossed
struct SweepConfig {
  std::string path;
  std::vector<std::string> traces;
  std::vector<uint64_t> seeds;
  std::vector<int> layers;  ///< empty: all of each trace
  /// "FILE:LINE" of each trace and layer (as text) that the file names, for messages.
  std::map<std::string, std::string> places;
  /// Records, budgets and how to measure; layers, seed and the steps through W_O are left open.
  StudyOptions options;
};

/// Mistakes are usage errors that name file and line.
SweepConfig read_sweep_config(const std::string& path);
/// `path` is only named in messages.
SweepConfig parse_sweep_config(std::string_view text, const std::string& path);

}  // namespace kvsim
