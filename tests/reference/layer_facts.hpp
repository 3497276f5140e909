#pragma once
#include <map>
#include <set>
#include <utility>

#include "tests/reference/policy_reference.hpp"

namespace kvsim::reference {

/// Everything about one layer that the indicators are made of.
class LayerFacts {
 public:
  LayerFacts(const PolicyCase& c, const LayerTrace& layer) : c_(c), layer_(layer) {}

  int heads() const { return c_.info->num_query_heads; }
  int group_size() const { return c_.info->group_size(); }
  const LayerTrace& layer() const { return layer_; }

  /// l_{h,j,.}, [N]; -inf where invisible.
  const Row& logit(int h, int64_t j);
  const Row& attention(int h, int64_t j);         ///< A_{h,j,.}
  const Row& projected_output(int h, int64_t j);  ///< z_j^h W^h
  const Row& projected_value(int h, int64_t i);   ///< v_i W^h
  double value_norm(int h, int64_t i, bool projected, bool first);
  /// A/(1-A) = weight of i over the weight of everything else that is visible, the sink included;
  /// +inf when nothing else is visible.
  double odds(int h, int64_t j, int64_t i);
  /// The part of the record's probe that a token belongs to, and what the layer says of it.
  const ProbePart& part_of(int64_t token) const;
  const ProbeLayer& probe() const;
  /// Logits [N] of the query at `position` when it stands at `to` and sees every key.
  Row moved_logits(int h, int64_t query, int64_t to) const;

 private:
  Row probe_logits(int h, int64_t token) const;
  Row probe_output(int h, int64_t token);

  const PolicyCase& c_;
  const LayerTrace& layer_;
  std::map<std::pair<int, int64_t>, Row> logits_, attention_, projected_z_, projected_v_;
};

/// The same, of a part of the prompt that is scored on its own.
struct PartFacts {
  const PolicyCase& c;
  LayerFacts& layer;
  const Part& part;
  std::map<int, double> largest = {};                            ///< of largest_logit
  std::map<std::pair<int, int64_t>, Row> rows_of_the_kind = {};  ///< that it remembers, [h][query]

  int64_t query(size_t j) const { return part.queries[j]; }
  int64_t entry(size_t x) const { return part.candidates[x]; }
  bool visible(size_t j, size_t x) const {
    if (entry(x) > query(j)) return false;
    if (query(j) >= kProbeQuery) return true;
    // Pairs across segments do not count.
    return part.range.contains(query(j)) || !c.rescored() || c.settings.is("queries", "future");
  }
  double attention(int h, size_t j, size_t x) {
    return layer.attention(h, query(j))[static_cast<size_t>(entry(x))];
  }
  double largest_logit(int h);  ///< of all visible pairs
};

Row minus(Row a, const Row& b);

}  // namespace kvsim::reference
