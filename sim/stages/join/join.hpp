#pragma once
#include <memory>

#include "sim/stages/aggregate/aggregate.hpp"
#include "sim/stages/kind.hpp"

namespace kvsim {

/// How the queries of a probe observe beside those of `queries` (policies.md 5.4): both are
/// aggregated by themselves, and an entry gets one number of both.
class Join : public Kind {
 public:
  using Kind::Kind;
  bool nests(const Settings&) const override { return true; }  // sees no budget
  virtual bool joins() const { return true; }
  virtual double join(const Settings& settings, double of_prompt, double of_probe) const = 0;
};

/// An aggregation whose first `prompt_rows` rows are the one set, the others the other one.
std::unique_ptr<Aggregation> start_joined(const Settings& settings,
                                          std::unique_ptr<Aggregation> prompt,
                                          std::unique_ptr<Aggregation> probe, int64_t prompt_rows);

}  // namespace kvsim
