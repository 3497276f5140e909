#pragma once
#include <tuple>

#include "tests/reference/kinds.hpp"
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

/// Distance of two scores, relative to the larger, or to `unit` where that is more; 1 where they
/// are equal.
double distance(double a, double b, double unit = 0);

/// What a list is ranked by: the score, then what decides between equal ones.
struct Place {
  double score = 0, raw = 0;
};
/// The distance of numbers that the choice of the first `taken` of a ranked list hangs on. Where
/// equal ones stand on both sides, a neighbour that another arithmetic may make equal, too,
/// decides.
double closest_at_cut(const PolicyCase& c, const std::vector<Place>& ranked, size_t taken);

Head select_head(const PolicyCase& c, const Scores& scores, int owner, int64_t b,
                 const std::vector<int64_t>& among, const Head* unconstrained, double& closest);

/// An entry of a head in a competition with other heads (section 10 order over heads and layers).
struct Entry {
  double score = 0;
  int rank = 2;  // layer-max: protected 0, forced 1
  double raw = 0;
  int64_t position = 0;
  size_t owner = 0, layer = 0;
  bool operator<(const Entry& other) const {  // better first
    if (score != other.score) return score > other.score;
    if (rank != other.rank) return rank < other.rank;
    if (raw != other.raw) return raw > other.raw;
    if (position != other.position) return position > other.position;
    return std::tie(layer, owner) < std::tie(other.layer, other.owner);
  }
};

/// Heads of the same number at the last place: exact where their scores are equal throughout, or
/// both are 0. Elsewhere it is an identity, such as attention that sums to 1, and hangs on
/// rounding.
bool equal_but_for_rounding(const std::vector<Entry>& open, const Entry& last);
/// Candidates of a head that are not in `taken`, best first.
std::vector<Entry> entries_of(const PolicyCase& c, const Scores& scores, size_t layer, size_t owner,
                              const std::vector<int64_t>& taken);

/// One number per layer, of all its owners, at most n.
Budgets same_for_owners(const PolicyCase& c, const std::vector<int64_t>& per_layer);

/// What scores of the l-th layer that takes part count times where layers compete.
double joint_factor(const PolicyCase& c, const std::vector<Scores>& scores, size_t l);

/// |P| and the entries of stage1=mass, before any budget is known.
struct Protected {
  std::vector<int64_t> guarded, forced, both;
};
Protected before_allocation(const PolicyCase& c, const Scores& scores, size_t owner);

}  // namespace kvsim::reference
