#include "sim/core/parallel.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace kvsim {
namespace {

int thread_count = 0;
thread_local int my_index = 0;
thread_local bool inside = false;

/// One loop: the next index, the first exception, and who works on it.
class Loop {
 public:
  Loop(int64_t count, int most, const std::function<void(int64_t)>& body)
      : count_(count), most_(most), body_(body) {}

  void work(int index) {
    my_index = index;
    inside = true;
    for (int64_t i = next_++; i < count_ && !failed_; i = next_++) {
      try {
        body_(i);
      } catch (...) {
        const std::lock_guard lock(mutex_);
        if (!failed_.exchange(true)) error_ = std::current_exception();
      }
    }
    inside = false;
    my_index = 0;
  }
  void finish() const {
    if (error_) std::rethrow_exception(error_);
  }

  // The team's, under its lock.
  bool takes_more() const { return joined_ < most_; }
  int join() {
    ++helpers_;
    return joined_++;
  }
  void leave() {
    if (--helpers_ == 0) left_.notify_one();
  }
  bool alone() const { return helpers_ == 0; }
  std::condition_variable& left() { return left_; }

 private:
  const int64_t count_;
  const int most_;  ///< threads
  const std::function<void(int64_t)>& body_;
  std::atomic<int64_t> next_{0};
  std::atomic<bool> failed_{false};
  std::mutex mutex_;
  std::exception_ptr error_;
  int joined_ = 1;                ///< threads so far, with the one that called
  std::atomic<int> helpers_{0};   ///< that are at work now
  std::condition_variable left_;  ///< the last of them has left
};

/// Is it so within a moment? Loops follow each other closely, and a thread that sleeps takes long
/// to wake; but on a busy machine whoever waits must leave the core to those that work.
template <class Test>
bool soon(const Test& test) {
  constexpr std::chrono::microseconds kMoment(30);
  const auto until = std::chrono::steady_clock::now() + kMoment;
  while (!test()) {
    if (std::chrono::steady_clock::now() >= until) return false;
    std::this_thread::yield();
  }
  return true;
}

/// Threads that help with whatever loop is open. Whoever runs a loop works on it too and waits only
/// for helpers that took part of it: one that got no core in time is not waited for. The threads
/// are OpenMP's, the waiting is not: its barriers wait for every thread of a team, spinning.
class Team {
 public:
  /// Lives as long as its threads: to the end of the program.
  static Team& whole() {
    static Team* const team = new Team;
    return *team;
  }

  void run(Loop& loop, int most) {
    int wanted = 0;
    {
      const std::lock_guard lock(mutex_);
      add_helpers(threads() - 1);
      open_.push_back(&loop);
      ++opened_;
      wanted = std::min(most - 1, asleep_);
    }
    for (int t = 0; t < wanted; ++t) wake_.notify_one();
    loop.work(0);
    std::unique_lock lock(mutex_);
    std::erase(open_, &loop);
    if (loop.alone()) return;
    lock.unlock();
    soon([&] { return loop.alone(); });
    lock.lock();
    loop.left().wait(lock, [&] { return loop.alone(); });
  }

 private:
  [[noreturn]] void serve() {
    std::unique_lock lock(mutex_);
    for (;;) {
      Loop* const loop = open_loop();
      if (loop == nullptr) {
        wait_for_loop(lock);
        continue;
      }
      const int index = loop->join();
      lock.unlock();
      loop->work(index);
      lock.lock();
      std::erase(open_, loop);  // nothing is left to do
      loop->leave();
    }
  }

  Loop* open_loop() const {
    const auto found = std::ranges::find_if(open_, [](Loop* one) { return one->takes_more(); });
    return found == open_.end() ? nullptr : *found;
  }

  void wait_for_loop(std::unique_lock<std::mutex>& lock) {
    const uint64_t seen = opened_;
    lock.unlock();
    const bool opened = soon([&] { return opened_ != seen; });
    lock.lock();
    if (opened) return;
    ++asleep_;
    wake_.wait(lock, [&] { return open_loop() != nullptr; });
    --asleep_;
  }

  void add_helpers(int wanted) {
    const int more = wanted - helpers_;
    if (more <= 0) return;
    helpers_ = wanted;
    try {
#ifdef KVSIM_STD_THREADS
      for (int t = 0; t < more; ++t) std::thread([this] { serve(); }).detach();
#else
      std::thread([this, more] {
#pragma omp parallel num_threads(more)
        serve();
      }).detach();
#endif
    } catch (const std::system_error&) {
      // The system has no more threads: those that are there do the work.
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<Loop*> open_;          ///< loops that may have something left to do
  std::atomic<uint64_t> opened_{0};  ///< loops so far
  int helpers_ = 0;
  int asleep_ = 0;
};

}  // namespace

void set_threads(int count) { thread_count = count; }

int threads() {
  if (thread_count > 0) return thread_count;
  static const unsigned cores = std::thread::hardware_concurrency();  // asks the system each time
  return cores > 0 ? static_cast<int>(cores) : 1;
}

int thread_index() { return my_index; }

void parallel_for(int64_t count, const std::function<void(int64_t)>& body) {
  const int wanted = static_cast<int>(std::min<int64_t>(count, threads()));
  if (wanted <= 1 || inside) {
    for (int64_t i = 0; i < count; ++i) body(i);
    return;
  }
  Loop loop(count, wanted, body);
  Team::whole().run(loop, wanted);
  loop.finish();
}

}  // namespace kvsim
