#pragma once
#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "sim/backend/backend.hpp"

#ifdef __linux__
#endif

namespace kvsim {

/// Memory on huge pages, unless the system has none, outside the heap: blocks aligned so widely
/// leave holes there that are never filled. Null if there is no memory; munmap gives it back.
inline void* map_huge(size_t bytes, size_t alignment) {
#ifdef __linux__
  void* const whole = mmap(nullptr, bytes + alignment, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (whole == MAP_FAILED) return nullptr;
  auto* const first = static_cast<std::byte*>(whole);
  const size_t before = alignment - reinterpret_cast<uintptr_t>(whole) % alignment;
  munmap(first, before);
  if (before < alignment) munmap(first + before + bytes, alignment - before);
  madvise(first + before, bytes, MADV_HUGEPAGE);
  return first + before;
#else
  return std::aligned_alloc(alignment, bytes);
#endif
}

/// Uninitialised memory of one thread, aligned to cache lines; on huge pages when it is large,
/// since the products jump through scores and values by index.
template <class T>
class Scratch {
 public:
  Scratch() = default;
  explicit Scratch(int64_t count) { reserve(count); }

  /// Room for at least `count` elements; what was there is lost when it grows.
  T* reserve(int64_t count) {
    if (count <= size_) return data();
    constexpr size_t kHugePage = size_t{2} << 20;
    const size_t bytes = static_cast<size_t>(count) * sizeof(T);
    const bool huge = bytes >= 2 * kHugePage;
    const size_t alignment = huge ? kHugePage : 64;
    const size_t rounded = (bytes + alignment - 1) / alignment * alignment;
    memory_.reset();
    void* const memory = huge ? map_huge(rounded, alignment)
                              : std::aligned_alloc(alignment, rounded);
    memory_ = {static_cast<T*>(memory), Free{huge ? rounded : 0}};
    size_ = memory != nullptr ? count : 0;
    if (memory == nullptr) throw std::bad_alloc();
    return data();
  }

  T* data() { return memory_.get(); }
  const T* data() const { return memory_.get(); }
  int64_t size() const { return size_; }

 private:
  struct Free {
    size_t mapped = 0;  // bytes, 0: on the heap
    void operator()(T* p) const {
#ifdef __linux__
      if (mapped > 0) {
        munmap(p, mapped);
        return;
      }
#endif
      std::free(p);
    }
  };
  std::unique_ptr<T, Free> memory_;
  int64_t size_ = 0;
};

/// Memory of one thread for tiles of the replay. ld, ldv: padded rows of a tile, padded dv.
struct TileMemory {
  Scratch<float> queries;       ///< [d][ld]
  Scratch<float> keys;          ///< [some keys][d]
  Scratch<float> values;        ///< [chunk][ldv]
  Scratch<float> scores;        ///< [chunk][ld]; after a block, columns of W_O
  Scratch<float> weights;       ///< [chunk][heads + kPad]
  Scratch<float> accumulators;  ///< full prompt, later positions, then the slots of the plans
};

/// Large memory of the replay and its projections. The backend keeps it from layer to layer:
/// touching new pages would cost several percent of a short replay.
struct ReplayMemory {
  std::vector<ReplayBlock> blocks;      ///< in flight together
  std::vector<Scratch<float>> outputs;  ///< `delta` of all sets, per block
  std::vector<TileMemory> tiles;        ///< one per thread
  Scratch<float> projected;             ///< W_O, which becomes its factor
};

/// Memory of one thread for tiles of attention over slots. ld, stride: padded queries of a
/// tile, padded dv.
struct AttendMemory {
  std::vector<int64_t> seen;     ///< [queries] slots that each sees
  std::vector<int32_t> last;     ///< [ld] last slot of the block that a query sees
  std::vector<float> maximum;    ///< [ld] of the block
  std::vector<float> shift;      ///< [ld]
  std::vector<double> mass;      ///< [ld] sum of exp(logit - shift)
  std::vector<double> products;  ///< [slots of a segment], one by one
  Scratch<float> queries;        ///< [d][ld], scaled; [d] one by one
  Scratch<float> scores;         ///< [slots of the block][ld]; [slots] one by one
  Scratch<float> exponentials;   ///< [slots][queries], one by one
  Scratch<float> sums;           ///< [queries][stride]
  Scratch<float> values;         ///< [slots of the block][stride]
};

/// Memory that is kept from call to call: a step of decoding takes less time than to find it anew.
class AttendMemories {
 public:
  std::unique_ptr<AttendMemory> take() {
    const std::lock_guard lock(access_);
    if (free_.empty()) return std::make_unique<AttendMemory>();
    std::unique_ptr<AttendMemory> one = std::move(free_.back());
    free_.pop_back();
    return one;
  }
  void give(std::unique_ptr<AttendMemory> one) {
    const std::lock_guard lock(access_);
    free_.push_back(std::move(one));
  }

 private:
  std::mutex access_;  // calls run side by side
  std::vector<std::unique_ptr<AttendMemory>> free_;
};

}  // namespace kvsim
