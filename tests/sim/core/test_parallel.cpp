#include <atomic>
#include <catch2/catch.hpp>
#include <stdexcept>
#include <vector>

#include "sim/core/parallel.hpp"

using namespace kvsim;

namespace {
/// Sets the number of threads for one test.
class Threads {
 public:
  explicit Threads(int count) { set_threads(count); }
  ~Threads() { set_threads(0); }
};
}  // namespace

TEST_CASE("a parallel loop runs every index once with any number of threads", "[core]") {
  const Threads threads_of_test(GENERATE(1, 2, 8));
  std::vector<std::atomic<int>> seen(1000);
  parallel_for(1000, [&](int64_t i) { ++seen[static_cast<size_t>(i)]; });
  for (const auto& count : seen) CHECK(count == 1);
  parallel_for(0, [&](int64_t) { FAIL("nothing to run"); });
}

TEST_CASE("thread indices stay below the number of threads", "[core]") {
  const Threads threads_of_test(4);
  std::atomic<bool> outside{false};
  parallel_for(200, [&](int64_t) {
    if (thread_index() < 0 || thread_index() >= threads()) outside = true;
  });
  CHECK_FALSE(outside);
  CHECK(thread_index() == 0);
}

TEST_CASE("an exception in a parallel loop reaches the caller", "[core]") {
  const Threads threads_of_test(GENERATE(1, 2, 8));
  const auto fail = [](int64_t i) {
    if (i == 17) throw std::runtime_error("seventeen");
  };
  CHECK_THROWS_WITH(parallel_for(100, fail), "seventeen");
  std::atomic<int> after{0};
  parallel_for(10, [&](int64_t) { ++after; });   // the next loop works
  CHECK(after == 10);
}

TEST_CASE("a nested parallel loop runs in the thread that calls it", "[core]") {
  const Threads threads_of_test(4);
  std::atomic<int> count{0};
  std::atomic<bool> moved{false};
  parallel_for(8, [&](int64_t) {
    const int outer = thread_index();
    parallel_for(5, [&](int64_t) {
      ++count;
      if (thread_index() != outer) moved = true;
    });
  });
  CHECK(count == 40);
  CHECK_FALSE(moved);
}
