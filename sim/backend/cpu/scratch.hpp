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
    const size_t alignment = bytes >= 2 * kHugePage ? kHugePage : 64;
    const size_t rounded = (bytes + alignment - 1) / alignment * alignment;
    memory_.reset();
    memory_.reset(static_cast<T*>(std::aligned_alloc(alignment, rounded)));
    if (memory_ == nullptr) throw std::bad_alloc();
#ifdef __linux__
    if (alignment == kHugePage) madvise(memory_.get(), rounded, MADV_HUGEPAGE);
#endif
    size_ = count;
    return data();
  }

  T* data() { return memory_.get(); }
  const T* data() const { return memory_.get(); }
  int64_t size() const { return size_; }

 private:
  struct Free {
    void operator()(T* p) const { std::free(p); }
  };
  std::unique_ptr<T, Free> memory_;
  int64_t size_ = 0;
};

}  // namespace kvsim
