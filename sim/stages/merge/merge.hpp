#pragma once
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "sim/core/array.hpp"
#include "sim/stages/kind.hpp"
#include "sim/stages/merge/slot_cache.hpp"
#include "sim/stages/parameter.hpp"
#include "sim/stages/settings.hpp"

namespace kvsim {
namespace keys {
extern const Declare merge_threshold;
}

/// Queries that a fit looks at: those that observe, of all heads of the owner.
struct ReferenceQueries {
  Table<float> queries;      ///< [queries][d] as the trace stores them
  std::vector<int> head;     ///< [queries] of the owner's
  double scale = 0;          ///< of logits
  std::vector<float> sinks;  ///< [heads] or empty
};

/// One owner at a compression. Slots that lose their place are still there; who called erases them
/// afterwards.
struct MergeOwner {
  SlotCache* cache = nullptr;
  std::vector<int64_t> evicted;   ///< slots, ascending
  std::vector<double> attention;  ///< [slots] of the newest query, mean over the owner's heads;
                                  ///< empty unless uses_attention()
  std::unique_ptr<ReferenceQueries> reference;  ///< only where fits_queries()
  /// Slots that become one, for kinds that replace selection; filled by who called.
  struct Set {
    int64_t pivot = 0;
    std::vector<int64_t> members;  ///< the pivot included
  };
  std::vector<Set> sets;
  /// Slots that a merge went into, in the order of the merges, and where they came from.
  struct Step {
    int64_t from = 0;
    int64_t into = 0;
    double entries_from = 1;  ///< before the merge
    double entries_into = 1;
    double log_score_from = kUnknown;  ///< ln s^ before the merge, where the kind estimates one
    double log_score_into = kUnknown;
    double scale = 1;  ///< f of Eq. 7
    static constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
  };
  std::vector<Step> steps;
  int64_t undefined_scales = 0;  ///< merges at which Eq. 7 is undefined
  std::vector<double> scales;    ///< f of Eq. 7, one per merge
};

/// Memory of a kind about a layer between compressions.
struct MergeMemory {
  bool started = false;
  double threshold = 0;  ///< d2o's tau
};

/// One compression of one layer.
struct MergeRequest {
  const Settings* settings = nullptr;
  uint64_t seed = 0;
  int layer = 0;
  std::vector<MergeOwner> owners;
  MergeMemory* memory = nullptr;
};

enum class EstimateLines { none, mean_query, every_head };

/// Entries of one owner as sets that become one slot each; for kinds that replace selection.
struct ClusterRequest {
  const float* keys = nullptr;  ///< [n][d]
  int64_t key_dim = 0;
  std::span<const double> score;  ///< [n] higher = keep
  int64_t budget = 0;             ///< b
};
struct Clusters {
  std::vector<std::vector<uint32_t>> sets;  ///< entries of each, ascending; sets by `pivot`
  std::vector<uint32_t> pivot;              ///< entry of the set at whose position the slot sits
  std::vector<uint32_t> guarded;            ///< entries kept for sure, ascending
};

/// Treatment of entries that lose their place (policies.md 9).
class Merge : public Kind {
 public:
  using Kind::Kind;
  virtual bool merges() const { return true; }  ///< anything but `drop`
  /// Values of `votes` that fit, the usual one first.
  virtual std::vector<std::string> votes() const { return {"none"}; }
  virtual EstimateLines estimates() const { return EstimateLines::none; }
  virtual bool uses_attention() const { return false; }
  /// Logits must be linear in the key: no softcap.
  virtual bool needs_linear_logits() const { return estimates() != EstimateLines::none; }
  virtual bool replaces_selection() const { return false; }
  virtual bool fits_queries() const { return false; }  ///< to the queries that observe
  bool nests(const Settings&) const override { return !replaces_selection(); }
  /// Bounds of KeepKV's Theorem 5 that are about this kind, read by `heads` query heads.
  virtual std::vector<std::string> bounds(int /*heads*/) const { return {}; }
  virtual Clusters cluster(const ClusterRequest&) const { return {}; }

  /// Changes the slots that stay. Called once per compression, for all owners of a layer.
  virtual void apply(MergeRequest& request) const = 0;
};

inline constexpr KindCondition selects_entries_if = {
    "merge",
    [](const Kind& kind) { return !dynamic_cast<const Merge&>(kind).replaces_selection(); }};
/// Does the record select entries by their scores, whatever becomes of the others?
inline bool selects_entries(const Settings& settings) {
  return !chosen<Merge>(settings).replaces_selection();
}

/// Moves the entries of slot `from` into `into` and notes the step; keys and values are the
/// caller's business.
MergeOwner::Step& join(MergeOwner& owner, int64_t from, int64_t into);

}  // namespace kvsim
