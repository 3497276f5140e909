#include "sim/core/parallel.hpp"

#include <atomic>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#ifndef KVSIM_STD_THREADS
#include <omp.h>
#endif

namespace kvsim {
namespace {

int thread_count = 0;
thread_local int my_index = 0;
thread_local bool inside = false;

/// Shared state of one loop: the next index and the first exception.
class Loop {
 public:
  Loop(int64_t count, const std::function<void(int64_t)>& body) : count_(count), body_(body) {}

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

 private:
  const int64_t count_;
  const std::function<void(int64_t)>& body_;
  std::atomic<int64_t> next_{0};
  std::atomic<bool> failed_{false};
  std::mutex mutex_;
  std::exception_ptr error_;
};

}  // namespace

void set_threads(int count) { thread_count = count; }

int threads() {
  if (thread_count > 0) return thread_count;
  static const unsigned cores = std::thread::hardware_concurrency();   // asks the system each time
  return cores > 0 ? static_cast<int>(cores) : 1;
}

int thread_index() { return my_index; }

void parallel_for(int64_t count, const std::function<void(int64_t)>& body) {
  const int wanted = static_cast<int>(std::min<int64_t>(count, threads()));
  if (wanted <= 1 || inside) {
    for (int64_t i = 0; i < count; ++i) body(i);
    return;
  }
  Loop loop(count, body);
#ifdef KVSIM_STD_THREADS
  std::vector<std::thread> pool;
  for (int t = 1; t < wanted; ++t) pool.emplace_back([&loop, t] { loop.work(t); });
  loop.work(0);
  for (auto& thread : pool) thread.join();
#else
  // Always the same number: libgomp ends threads that a smaller team leaves out.
#pragma omp parallel num_threads(threads())
  loop.work(omp_get_thread_num());
#endif
  loop.finish();
}

}  // namespace kvsim
