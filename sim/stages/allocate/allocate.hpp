#pragma once
#include "sim/backend/backend.hpp"
#include "sim/stages/kind.hpp"

namespace kvsim {
namespace keys {
extern const Declare nested, joint_depth, joint_stream;
}

struct AllocationLayer {
  int layer = 0;                                  ///< the model's index l
  const ScoredLayer* scored = nullptr;            ///< null for kinds that need no scores
  const Ranking* ranking = nullptr;               ///< by the scores of `allocate_score`
  std::vector<std::vector<uint32_t>> guaranteed;  ///< per owner: protected entries, then those
                                                  ///< forced by stage1=mass
  std::vector<int64_t> guarded;                   ///< per owner: how many of them are protected
};

/// Input of one allocation. B = budget entries per owner.
struct AllocationRequest {
  const Settings* settings = nullptr;
  const SideFiles* files = nullptr;
  int64_t budget = 0;  ///< B
  Decimal ratio;       ///< rho as typed; B/n when `budget_is_count`
  bool budget_is_count = false;
  int64_t entries = 0;                  ///< n
  int64_t window = 0;                   ///< m
  int64_t owners = 0;                   ///< per layer
  int model_layers = 0;                 ///< L
  std::vector<AllocationLayer> layers;  ///< those that take part, ascending
};

/// Watches attention rows of a layer on behalf of an allocation (cake, d2o).
struct RowStatistic {
  virtual ~RowStatistic() = default;
  /// Rows row_begin.. of J, one block per KV head at a time; blocks of a KV head come in order.
  /// Not called in parallel.
  virtual void add(const AttentionBlock&, int64_t /*row_begin*/, Range /*candidates*/) {}
  /// Where the rows count only through their sum: it comes instead of them, over the candidates,
  /// once for each query head in order.
  virtual bool takes_sums() const { return false; }
  virtual void add_sum(std::span<const double>) {}
  virtual std::vector<double> finish() = 0;
};

/// A budget for every owner (policies.md 7).
struct Allocate : Kind {
  explicit Allocate(KindInfo info) : Kind("allocate", std::move(info)) {}
  virtual bool needs_scores() const { return false; }
  virtual bool across_layers() const { return false; }
  virtual bool even() const { return false; }                         ///< every head has B
  virtual bool needs_stream(const Settings&) const { return false; }  ///< ScoredLayer::stream_norm
  virtual bool uses_token_classes() const { return false; }           ///< of ScoredLayer
  virtual bool ignores_budget() const { return false; }               ///< allocate=table
  virtual bool keeps_everything() const { return false; }             ///< nothing is ever evicted
  /// Do all heads together get exactly layers * heads * B?
  virtual bool spends_budget() const { return true; }
  /// Protected and forced entries have no guarantee but a score, and stand by position among each
  /// other.
  virtual bool lets_protected_compete(const Settings&) const { return false; }
  /// `rows`: |J|; null for kinds that watch nothing. One object watches one segment.
  virtual std::unique_ptr<RowStatistic> statistic(const Settings&, const TraceInfo&,
                                                  int64_t /*rows*/, Range /*candidates*/) const {
    return nullptr;
  }
  virtual bool watches() const { return false; }
  bool at_each_step() const override { return !needs_scores() && !watches(); }
  /// Reads the files that it names, so that what is wrong with them is said before any work.
  virtual void check_files(const Settings&, const SideFiles&, int /*model_layers*/,
                           int64_t /*owners*/) const {}
  /// b: [layers][owners]. Values above n are cut by the caller.
  virtual Table<int64_t> budgets(const AllocationRequest& request) const = 0;
};

/// apportion(T, x, cap) of policies.md 3: whole numbers by largest remainder.
std::vector<int64_t> apportion(int64_t total, std::vector<double> weights, int64_t cap);
/// Takes integer weights: quotas are exact.
std::vector<int64_t> apportion_exact(int64_t total, const std::vector<int64_t>& weights,
                                     const std::vector<int64_t>& caps);

/// Factors of the layers' scores where layers compete: joint_depth, joint_stream.
std::vector<double> layer_factors(const AllocationRequest& request);

/// floor(entries * rho * heads), the total of `ada_total=product`.
int64_t product_total(const AllocationRequest& request, int64_t heads);
/// Entries that `heads` of them share, as `ada_total` says.
int64_t shared_total(const AllocationRequest& request, int64_t heads);

}  // namespace kvsim
