#include <atomic>
#include <catch2/catch.hpp>
#include <mutex>
#include <thread>

#include "sim/core/prelude.hpp"

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
  parallel_for(10, [&](int64_t) { ++after; });  // the next loop works
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

TEST_CASE("threads that loop at the same time share the helpers", "[core]") {
  const Threads threads_of_test(3);
  std::atomic<int> wrong{0};
  std::vector<std::thread> callers;
  for (int caller = 0; caller < 4; ++caller) {
    callers.emplace_back([&wrong, caller] {
      for (int64_t loop = 1; loop < 300; ++loop) {
        const int64_t count = (loop * (caller + 1)) % 7 + 2;
        std::vector<std::atomic<int>> seen(static_cast<size_t>(count));
        parallel_for(count, [&](int64_t i) {
          ++seen[static_cast<size_t>(i)];
          if (thread_index() >= threads()) ++wrong;
        });
        for (const auto& times : seen) wrong += times != 1;
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  CHECK(wrong == 0);
}

TEST_CASE("a loop uses no more threads than are set, also after there were more", "[core]") {
  for (const int count : {8, 2, 5}) {
    const Threads threads_of_test(count);
    std::mutex mutex;
    std::set<std::thread::id> ids;
    std::set<int> indices;
    parallel_for(400, [&](int64_t) {
      const std::lock_guard lock(mutex);
      ids.insert(std::this_thread::get_id());
      indices.insert(thread_index());
    });
    CHECK(ids.size() == indices.size());
    CHECK(*indices.rbegin() < count);
  }
}

TEST_CASE("threads that work at the same time have indices of their own", "[core]") {
  const Threads threads_of_test(4);
  std::atomic<int> arrived{0};
  std::vector<int> indices(4);
  // Nobody goes on before all four are there.
  parallel_for(4, [&](int64_t i) {
    indices[static_cast<size_t>(i)] = thread_index();
    ++arrived;
    while (arrived < 4) std::this_thread::yield();
  });
  CHECK(std::set<int>(indices.begin(), indices.end()) == std::set<int>{0, 1, 2, 3});
}
