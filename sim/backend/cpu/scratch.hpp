#pragma once
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>

#ifdef __linux__
#include <sys/mman.h>
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

}  // namespace kvsim
