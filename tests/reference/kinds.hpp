#pragma once
#include <functional>
#include <initializer_list>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>

#include "tests/reference/layer_facts.hpp"

/// The naive reference of every kind, by stage and name. A reference registers itself, from any
/// file of the tests: that of its stage here, or the one that tests the kind.
///     const References<AggregateReference> mine{{"my-kind", {[](const PolicyCase& c, ...)
///     {...}}}};
namespace kvsim::reference {

/// X[a][j][c] of one part: a over query heads (or KV heads), j over J, c over C.
using Rows = std::vector<std::vector<Row>>;
using Budgets = std::vector<std::vector<int64_t>>;  ///< [layer that takes part][owner]

struct QueriesReference {
  static constexpr const char* kStage = "queries";
  /// J of a part whose range and window are known.
  std::function<std::vector<int64_t>(const PolicyCase&, const Part&)> positions;
  std::function<int64_t(const PolicyCase&)> window = nullptr;  ///< m; null: there is no window
};

struct IndicatorReference {
  static constexpr const char* kStage = "indicator";
  /// X[h][j][c], of KV heads where `per_kv_head`; null: the kind has `observed` or `entries`.
  std::function<double(PartFacts&, int h, size_t j, size_t c)> element = nullptr;
  /// X[h][c] of all queries of the part at once, of KV heads where `per_kv_head`.
  std::function<std::vector<Row>(const PolicyCase&, const LayerTrace&, const Part&)> observed =
      nullptr;
  bool per_kv_head = false;
  bool from_behind = false;  ///< every query sees the whole prompt
  /// X[i] of one owner, for all n entries.
  std::function<Row(const PolicyCase&, const LayerTrace&, int owner)> entries = nullptr;
  std::function<void(Rows&)> finish_rows = nullptr;  ///< once all of the part are there
  /// Of one head, after `aggregate`.
  std::function<void(PartFacts&, int h, Row&)> finish_aggregated = nullptr;
  /// Scores are differences of numbers of this size: near 0 they are as exact as those, no more.
  double unit = 0;
};

/// What `aggregate` folds into one number: entry c in all rows of J.
struct Column {
  Row x;
  std::vector<bool> seen;  ///< does the query see the entry?
};
struct AggregateReference {
  static constexpr const char* kStage = "aggregate";
  std::function<double(const PolicyCase&, const Column&)> of;
};

/// One number of the aggregates of the prompt's queries and of a probe's.
struct JoinReference {
  static constexpr const char* kStage = "join";
  std::function<double(const Settings&, double, double)> of;  ///< null: there is no probe
};
/// Tokens of the record's probe that observe, from kProbeQuery on.
std::vector<int64_t> probe_queries(const PolicyCase& c);

struct SmoothReference {
  static constexpr const char* kStage = "smooth";
  enum class Follows { nothing, rows, attention };
  std::function<Row(const Settings&, const Row&, Rational drift)> of;
  Follows follows = Follows::nothing;  ///< what the drift is taken from
};

struct GroupReference {
  static constexpr const char* kStage = "group";
  std::function<double(const Row& heads)> of;  ///< null: every head stays
  bool whole_layer = false;
};

/// At a first compression: the scale on which scores are remembered.
struct MemoryReference {
  static constexpr const char* kStage = "memory";
  bool over_largest = false;  ///< of the head's candidates
};

/// What other entries of the head say, too.
struct RedundancyReference {
  static constexpr const char* kStage = "redundancy";
  /// Of entries with these keys, oldest first; null: none.
  std::function<Row(const Settings&, const std::vector<Row>& keys)> of;
  std::function<double(const Settings&, double score, double redundancy)> mix = nullptr;
  bool over_largest = false;  ///< of the head's candidates
};

struct PriorReference {
  static constexpr const char* kStage = "prior";
  std::function<double(const Settings&, const Row&)> least;  ///< null: none
};

struct WeightReference {
  static constexpr const char* kStage = "weight";
  std::function<double(LayerFacts&, int h, int64_t i)> of;  ///< null: 1
  std::function<void(Row&)> settle = nullptr;               ///< of one owner's candidates
};

struct NormalizeReference {
  static constexpr const char* kStage = "normalize";
  /// From sums of weights: over the head, over the layer, over the heads of the entry.
  std::function<double(double head, double layer, double entry)> divisor;
  bool adds_mean = false;  ///< over heads, of the entry's weighted scores
};

struct UnionReference {
  static constexpr const char* kStage = "union";
  /// Scores of a part's candidates [owner][c] -> the one score of each; null: they stay.
  std::function<Row(const std::vector<Row>&)> of;
};

/// One head and range at the first selection stage.
struct Stage1Case {
  const PolicyCase& c;
  const Scores& scores;
  int owner = 0;
  Range range;
  std::vector<int64_t> guarded;  ///< protected entries of the range
  int64_t whole = 0;             ///< b, or the segment's share
  double& closest;
};
struct Stage1Reference {
  static constexpr const char* kStage = "stage1";
  std::function<std::vector<int64_t>(const Stage1Case&)> forced;  ///< best first; null: nothing
  bool before_allocation = false;  ///< before the head's budget is known, whatever the segments
};

struct AllocateReference {
  static constexpr const char* kStage = "allocate";
  std::function<Budgets(const PolicyCase&, const std::vector<int>& layers,
                        const std::vector<Scores>&, double& closest)>
      budgets;
};

struct ConstrainReference {
  static constexpr const char* kStage = "constrain";
  /// Of the segments of a head with b entries; null: there is one. `unconstrained`: what the record
  /// keeps without the constraint; null: not known yet.
  std::function<std::vector<int64_t>(const PolicyCase&, int64_t b, const Head* unconstrained)>
      shares;
};

/// Names of the kinds that have a reference, by stage.
std::map<std::string, std::set<std::string>>& references();

template <class Reference>
class References {
 public:
  References(std::initializer_list<std::pair<const char*, Reference>> kinds) {
    for (const auto& [name, reference] : kinds) {
      if (!table().emplace(name, reference).second)
        throw std::logic_error("reference registered twice: " + std::string(name));
      references()[Reference::kStage].insert(name);
    }
  }
  static const Reference& of(const Settings& settings) {
    const std::string& name = settings.text(Reference::kStage);
    const auto found = table().find(name);
    if (found == table().end())
      throw std::logic_error(std::string("no reference of ") + Reference::kStage + "=" + name);
    return found->second;
  }

 private:
  static std::map<std::string, Reference>& table() {
    static std::map<std::string, Reference> kinds;
    return kinds;
  }
};

}  // namespace kvsim::reference
