#include "run/measures/prompt_parts.hpp"

#include "analysis/key_norm.hpp"
#include "run/measures/measure.hpp"

namespace kvsim {
namespace {

constexpr int64_t kParts = 128;

VariableValues middles(const RunShape& run) {
  std::vector<double> values;
  for (const Range part : measured_parts(run.info.prompt_len))
    values.push_back(static_cast<double>(part.begin + part.end - 1) / 2);
  return values;
}

const DeclareMeasure declaration({.name = "parts", .place = 500},
                                 {{"part", "part", "1", "middle of a part of the prompt",
                                   "position; at most 128 parts of nearly equal length",
                                   Known{middles}}});

}  // namespace

std::vector<Range> measured_parts(int64_t entries) { return prompt_parts(entries, kParts); }

}  // namespace kvsim
