#include <algorithm>
#include <catch2/catch.hpp>

#include "sim/replay/prefill.hpp"

using namespace kvsim;

namespace {

constexpr int kEverything = PlanBuilder::Plans::kEverything;

std::shared_ptr<const OwnerSets> sets(OwnerSets owners) {
  return std::make_shared<const OwnerSets>(std::move(owners));
}

/// The set with this number, read back from the plans.
OwnerSets set_of(const PlanBuilder::Plans& plans, int number) {
  for (const ReplayPlan& plan : plans.plans) {
    if (number >= plan.boundaries()) {
      number -= static_cast<int>(plan.boundaries());
      continue;
    }
    OwnerSets owners;
    for (const KeptChain& chain : plan.owners) {
      const auto end = chain.end[static_cast<size_t>(number)];
      owners.emplace_back(chain.order.begin(), chain.order.begin() + end);
      std::sort(owners.back().begin(), owners.back().end());
    }
    return owners;
  }
  return {};
}

}  // namespace

TEST_CASE("nested sets share one chain and come back as they were", "[replay]") {
  PlanBuilder builder(6);
  const OwnerSets large = {{0, 2, 3, 5}, {1, 2, 4, 5}};
  const OwnerSets small = {{2, 5}, {1, 5}};
  const int a = builder.add(sets(large), false, true);
  const int b = builder.add(sets(small), false, true);
  const auto plans = builder.build();
  REQUIRE(plans.plans.size() == 1);
  CHECK(plans.plans[0].boundaries() == 2);
  CHECK(set_of(plans, plans.set[static_cast<size_t>(a)]) == large);
  CHECK(set_of(plans, plans.set[static_cast<size_t>(b)]) == small);
}

TEST_CASE("sets nested in one owner only are chains of their own", "[replay]") {
  PlanBuilder builder(6);
  const OwnerSets first = {{0, 1}, {0, 1}};
  const OwnerSets second = {{0, 1, 2}, {0, 3, 4}};
  const int a = builder.add(sets(first), false, true);
  const int b = builder.add(sets(second), false, true);
  const auto plans = builder.build();
  CHECK(plans.plans.size() == 2);
  CHECK(set_of(plans, plans.set[static_cast<size_t>(a)]) == first);
  CHECK(set_of(plans, plans.set[static_cast<size_t>(b)]) == second);
}

TEST_CASE("equal sets are asked for once, whoever asks", "[replay]") {
  PlanBuilder builder(6);
  const int a = builder.add(sets({{0, 1}, {2}}), false, false);
  const int b = builder.add(sets({{0, 1}, {2}}), false, true);
  CHECK(a == b);
  const int heads = builder.add(sets({{0, 1}, {2}}), true, true);  // other owners
  CHECK(heads != a);
  const auto plans = builder.build();
  REQUIRE(plans.plans.size() == 2);
  CHECK_FALSE(plans.plans[0].masses_only);  // one of the two wanted outputs
  CHECK(plans.plans[0].per_query_head != plans.plans[1].per_query_head);
}

TEST_CASE("keeping everything is not replayed", "[replay]") {
  PlanBuilder builder(2);
  const int all = builder.add(sets({{0, 1}, {0, 1}}), false, true);
  const int none = builder.add(sets({{}, {}}), false, true);
  const auto plans = builder.build();
  CHECK(plans.set[static_cast<size_t>(all)] == kEverything);
  CHECK(set_of(plans, plans.set[static_cast<size_t>(none)]) == OwnerSets{{}, {}});
  CHECK(plans.plans.size() == 1);
}

TEST_CASE("sums alone are not mixed with sets whose outputs are wanted", "[replay]") {
  PlanBuilder builder(4);
  builder.add(sets({{0}}), false, false);
  builder.add(sets({{0, 1}}), false, true);
  const auto plans = builder.build();
  REQUIRE(plans.plans.size() == 2);
  CHECK(plans.plans[0].masses_only);
  CHECK_FALSE(plans.plans[1].masses_only);
}
