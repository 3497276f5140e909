#pragma once
#include "tests/reference/policy_reference.hpp"

namespace kvsim::reference {

/// What a segment of one head keeps before anything is ranked by score.
struct Sure {
  std::vector<int64_t> guarded;  ///< protected, in the order in which they are granted
  std::vector<int64_t> forced;   ///< by stage 1, best first, none of them protected
};

/// Per segment, for a head with b entries divided into `shares`.
std::vector<Sure> sure_entries(const PolicyCase& c, const Scores& scores, int owner,
                               const std::vector<int64_t>& shares, int64_t b, double& closest);

/// FastGen's classes of a range: special, punctuation, frequent, local; an entry may be in several.
std::vector<std::vector<int64_t>> class_sets(const PolicyCase& c, const Scores& scores, int owner,
                                             Range range, double& closest);

/// What `constrain` gives the segments of a head; {b} without it. `unconstrained`: what the same
/// record keeps without the constraint, for debias; null: not known yet, shares are the fair ones.
std::vector<int64_t> shares_of(const PolicyCase& c, int64_t b, const Head* unconstrained);

/// Relative distance of two scores; 1 where they are equal.
double distance(double a, double b);

Head select_head(const PolicyCase& c, const Scores& scores, int owner, int64_t b,
                 const std::vector<int64_t>& among, const Head* unconstrained, double& closest);

}  // namespace kvsim::reference
