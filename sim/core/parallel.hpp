#pragma once
#include <cstdint>
#include <functional>

namespace kvsim {

/// Threads that parallel loops use; set once at start (0: all cores of the machine).
void set_threads(int threads);
int threads();

/// Runs body(i) for i in 0..count-1, in any order, on `threads()` threads. The first exception
/// thrown is rethrown here after all threads have stopped. Nested calls run in the caller's thread.
/// This is the only parallel construct of the program (OpenMP, or std::thread in tsan builds).
void parallel_for(int64_t count, const std::function<void(int64_t)>& body);

/// Index 0..threads()-1 of the thread a body runs on; for per-thread scratch memory.
int thread_index();

}  // namespace kvsim
