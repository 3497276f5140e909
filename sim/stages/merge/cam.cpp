#include "sim/core/numbers.hpp"
#include "sim/stages/merge/merge.hpp"

namespace kvsim::stages::merge::cam {

const Declare cam_targets("cam_targets", "count >= 1 slots", "32",
                          "later slots among which a value is spread");

/// Spreads the value of an evicted slot over the next kept ones, in proportion to how its
/// attention compares with theirs. Keys stay, so entries count as dropped.
struct CamBase : Merge {
  using Merge::Merge;
  bool uses_attention() const override { return true; }
  virtual double amount(double chance, double draw) const = 0;

  void apply(MergeRequest& request) const override {
    const int64_t most = request.settings->count(cam_targets);
    for (MergeOwner& owner : request.owners) {
      SlotCache& cache = *owner.cache;
      std::vector<int64_t> later;  // kept slots behind the one at work, farthest first
      double attention = 0;
      size_t next = owner.evicted.size();
      std::vector<std::pair<int64_t, double>> spread(owner.evicted.size());  // targets, amount
      std::vector<std::vector<int64_t>> targets(owner.evicted.size());
      for (int64_t slot = cache.size(); slot-- > 0 && next > 0;) {
        if (owner.evicted[next - 1] != slot) {
          later.push_back(slot);
          attention += owner.attention[slot];
          continue;
        }
        --next;
        const auto count = std::min<int64_t>(most, std::ssize(later));
        if (count == 0 || attention <= 0) continue;
        const double mean = attention / static_cast<double>(later.size());
        const double chance = std::clamp(owner.attention[slot] / mean, 0.0, 1.0);
        const double draw = uniform(request.seed + 1, static_cast<uint64_t>(request.layer),
                                    static_cast<uint64_t>(cache.owner()),
                                    static_cast<uint64_t>(cache.position(slot)));
        spread[next] = {slot, amount(chance, draw) / static_cast<double>(count)};
        targets[next].assign(later.end() - count, later.end());
      }
      for (size_t x = 0; x < spread.size(); ++x)
        for (size_t at = 0; spread[x].second != 0 && at < targets[x].size(); ++at)
          mix(cache.value(targets[x][at]), 1, cache.value(spread[x].first), spread[x].second);
    }
  }
};

/// CaM as published: a draw decides.
struct Cam : CamBase {
  Cam()
      : CamBase({"merge", "cam", "values are spread over later slots, by a draw", "CaM repository",
                 "cam_targets", "query n-1"}) {}
  double amount(double chance, double draw) const override { return draw < chance ? 1 : 0; }
};

/// The expectation of the draw.
struct CamExpected : CamBase {
  CamExpected()
      : CamBase({"merge", "cam-expected", "values are spread over later slots, by the probability",
                 "kvsim", "cam_targets", "query n-1"}) {}
  double amount(double chance, double) const override { return chance; }
};
const Register<Merge, Cam, CamExpected> registered;

}  // namespace kvsim::stages::merge::cam
