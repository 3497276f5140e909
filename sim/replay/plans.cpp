#include <xxhash.h>

#include "sim/replay/prefill.hpp"

namespace kvsim {
namespace {

uint64_t hash_of(const OwnerSets& owners) {
  uint64_t hash = 0;
  for (const auto& owner : owners)
    hash = XXH3_64bits_withSeed(owner.data(), owner.size() * sizeof(uint32_t), hash);
  return hash;
}

int64_t size_of(const OwnerSets& owners) {
  int64_t size = 0;
  for (const auto& owner : owners) size += std::ssize(owner);
  return size;
}

/// Is every owner's set of `inner` within that of `outer`?
bool nested(const OwnerSets& inner, const OwnerSets& outer) {
  for (size_t o = 0; o < inner.size(); ++o)
    if (inner[o].size() > outer[o].size()) return false;
  for (size_t o = 0; o < inner.size(); ++o)
    if (!std::includes(outer[o].begin(), outer[o].end(), inner[o].begin(), inner[o].end()))
      return false;
  return true;
}

}  // namespace

int PlanBuilder::add(std::shared_ptr<const OwnerSets> owners, bool per_query_head, bool outputs) {
  const uint64_t hash = hash_of(*owners);
  for (size_t handle = 0; handle < wanted_.size(); ++handle) {
    Wanted& known = wanted_[handle];
    if (known.hash == hash && known.per_query_head == per_query_head && *known.owners == *owners) {
      known.outputs |= outputs;
      return static_cast<int>(handle);
    }
  }
  const int64_t size = size_of(*owners);
  wanted_.push_back({std::move(owners), per_query_head, outputs, hash, size});
  return static_cast<int>(wanted_.size()) - 1;
}

bool PlanBuilder::is_everything(const Wanted& wanted) const {
  return wanted.size == entries_ * std::ssize(*wanted.owners);
}

PlanBuilder::Plans PlanBuilder::build() const {
  Plans result;
  result.set.assign(wanted_.size(), Plans::kEverything);
  auto order = ascending<size_t>(std::ssize(wanted_));
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return wanted_[a].size < wanted_[b].size; });

  // Ascending by size, each set goes on top of the largest set that it contains.
  std::vector<std::vector<size_t>> chains;
  for (const size_t handle : order) {
    const Wanted& set = wanted_[handle];
    if (is_everything(set)) continue;
    std::vector<size_t>* best = nullptr;
    for (auto& chain : chains) {
      const Wanted& last = wanted_[chain.back()];
      if (last.per_query_head != set.per_query_head || last.outputs != set.outputs) continue;
      if (best != nullptr && last.size <= wanted_[best->back()].size) continue;
      if (nested(*last.owners, *set.owners)) best = &chain;
    }
    if (best != nullptr) {
      best->push_back(handle);
    } else {
      chains.push_back({handle});
    }
  }

  int next_set = 0;
  std::vector<std::pair<size_t, size_t>> owners;  // of all plans
  for (const auto& chain : chains) {
    ReplayPlan plan;
    const Wanted& first = wanted_[chain.front()];
    plan.per_query_head = first.per_query_head;
    plan.masses_only = !first.outputs;
    plan.owners.resize(first.owners->size());
    for (size_t o = 0; o < plan.owners.size(); ++o) owners.emplace_back(result.plans.size(), o);
    for (const size_t handle : chain) result.set[handle] = next_set++;
    result.plans.push_back(std::move(plan));
  }
  parallel_for(std::ssize(owners), [&](int64_t at) {
    const auto [plan, o] = owners[at];
    static const std::vector<uint32_t> kNothing;
    const std::vector<uint32_t>* below = &kNothing;
    for (const size_t handle : chains[plan]) {
      const std::vector<uint32_t>& set = (*wanted_[handle].owners)[o];
      KeptChain& kept = result.plans[plan].owners[o];
      std::ranges::set_difference(set, *below, std::back_inserter(kept.order));
      kept.end.push_back(std::ssize(kept.order));
      below = &set;
    }
  });
  return result;
}

std::shared_ptr<const OwnerSets> owners_of(const std::shared_ptr<const KeptSets>& kept) {
  return {kept, &kept->owners};
}

}  // namespace kvsim
