#include "sim/policy/score_plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>

#include "sim/stages/aggregate/aggregate.hpp"
#include "sim/stages/allocate/allocate.hpp"
#include "sim/stages/common_keys.hpp"
#include "sim/stages/group/group.hpp"
#include "sim/stages/indicator/indicator.hpp"
#include "sim/stages/join/join.hpp"
#include "sim/stages/memory/memory.hpp"
#include "sim/stages/normalize/normalize.hpp"
#include "sim/stages/prior/prior.hpp"
#include "sim/stages/queries/queries.hpp"
#include "sim/stages/redundancy/redundancy.hpp"
#include "sim/stages/shape/shape.hpp"
#include "sim/stages/smooth/smooth.hpp"
#include "sim/stages/weight/weight.hpp"

namespace kvsim {

ScoringSteps::ScoringSteps(const Settings& settings) {
  for (const char letter : settings.text(keys::order))
    steps_.push_back(letter == 's'   ? ScoringStep::smooth
                     : letter == 'a' ? ScoringStep::aggregate
                                     : ScoringStep::group);
}

std::vector<ScoringStep>::const_iterator ScoringSteps::aggregate() const {
  return std::ranges::find(steps_, ScoringStep::aggregate);
}

bool ScoringSteps::before_aggregate(ScoringStep step) const {
  return std::ranges::find(steps_, step) < aggregate();
}

bool ScoringSteps::directly_after_aggregate(ScoringStep step) const {
  const auto next = aggregate() + 1;
  return next != steps_.end() && *next == step;
}

std::vector<ScoringStep> ScoringSteps::after_aggregate() const {
  return {aggregate() + 1, steps_.end()};
}

namespace {

void insert_keys(std::initializer_list<const Kind*> kinds, std::set<std::string>& keys) {
  for (const Kind* kind : kinds) {
    keys.insert(kind->info().stage);
    keys.insert(kind->info().keys.begin(), kind->info().keys.end());
  }
}

/// Settings that scores depend on up to `group`. Which queries observe is resolved: in `segments`.
std::set<std::string> read_by_grouping(const Settings& settings) {
  std::set<std::string> read = {"queries", "granularity", "order", "join"};
  insert_keys({&chosen<Indicator>(settings), &chosen<Aggregate>(settings),
               &chosen<Smooth>(settings), &chosen<Group>(settings), &chosen<Join>(settings)},
              read);
  return read;
}

}  // namespace

Settings ScorePlan::read_by_scoring(const Settings& record, bool watches) {
  std::set<std::string> read = read_by_grouping(record);
  read.insert({"weight_epsilon", "block", "block_score"});
  insert_keys({&chosen<Memory>(record), &chosen<Redundancy>(record), &chosen<Prior>(record),
               &chosen<Weight>(record), &chosen<Normalize>(record), &chosen<Union>(record)},
              read);
  if (watches) insert_keys({&chosen<Allocate>(record)}, read);
  return record.only(read);
}

bool ScorePlan::looks_ahead() const { return chosen<Queries>(settings).looks_ahead(); }

std::string ScorePlan::key() const {
  return fmt::format("{:d}{:d}{:d}{:d}{:d}{}", wants_unweighted, wants_mass, wants_deviation,
                     wants_statistic, wants_token_class, key_of(settings));
}

std::string ScorePlan::grouping_key() const {
  return key_of(settings.only(read_by_grouping(settings)));
}

std::string ScorePlan::key_of(const Settings& read) const {
  std::string text;
  for (const auto& [name, value] : read.values()) text += name + "=" + value + "|";
  for (const Segment& s : segments) {
    text += fmt::format("|{}-{} {}-{} {} {}+{}:", s.range.begin, s.range.end, s.candidates.begin,
                        s.candidates.end, s.window, s.rows_before, s.rows_after);
    for (size_t j = 0; j < s.positions.size(); ++j)  // where runs of positions begin
      if (j == 0 || s.positions[j] != s.positions[j - 1] + 1)
        text += fmt::format("{}@{},", s.positions[j], j);
    text += std::to_string(s.positions.size());
    if (s.probe >= 0) text += fmt::format("|probe {}:", s.probe);
    for (const int64_t token : s.probe_tokens) text += fmt::format("{},", token);
  }
  for (const int64_t slots : free_slots) text += fmt::format("|{}", slots);
  text += fmt::format("|{}", dropped);
  return text;
}

}  // namespace kvsim
