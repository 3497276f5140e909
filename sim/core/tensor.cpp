#include "sim/core/tensor.hpp"

#include <cstdlib>
#include <mutex>

#ifdef __linux__
#include <sys/mman.h>
#endif
#if defined(__x86_64__)
#include <immintrin.h>
#define KVSIM_X86 1
#endif

namespace kvsim {
namespace {

constexpr size_t kCacheLine = 64;
constexpr size_t kPage = 4096;
/// Big tensors begin on one: they are walked through an index in rank order, and huge pages spare
/// most TLB misses.
constexpr size_t kHugePage = size_t{2} << 20;

// ---- portable loops over one element at a time --------------------------------------------

void widen_half_portable(const uint16_t* in, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) out[i] = half_to_float(in[i]);
}

void widen_bfloat_portable(const uint16_t* in, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) out[i] = std::bit_cast<float>(uint32_t{in[i]} << 16);
}

void narrow_half_portable(const float* in, int64_t count, uint16_t* out) {
  for (int64_t i = 0; i < count; ++i) out[i] = float_to_half(in[i]);
}

uint16_t float_to_bfloat(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

#ifdef KVSIM_X86
// ---- eight elements at a time; chosen at run time because the build targets plain x86-64 ----

__attribute__((target("avx,f16c"))) void widen_half_f16c(const uint16_t* in, int64_t count,
                                                         float* out) {
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m128i raw = _mm_loadu_si128(reinterpret_cast<const __m128i*>(in + i));
    _mm256_storeu_ps(out + i, _mm256_cvtph_ps(raw));
  }
  widen_half_portable(in + i, count - i, out + i);
}

__attribute__((target("avx,f16c"))) void narrow_half_f16c(const float* in, int64_t count,
                                                          uint16_t* out) {
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m128i raw = _mm256_cvtps_ph(_mm256_loadu_ps(in + i), _MM_FROUND_TO_NEAREST_INT);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i), raw);
  }
  narrow_half_portable(in + i, count - i, out + i);
}

__attribute__((target("avx2"))) void widen_bfloat_avx2(const uint16_t* in, int64_t count,
                                                       float* out) {
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m128i raw = _mm_loadu_si128(reinterpret_cast<const __m128i*>(in + i));
    const __m256i bits = _mm256_slli_epi32(_mm256_cvtepu16_epi32(raw), 16);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i), bits);
  }
  widen_bfloat_portable(in + i, count - i, out + i);
}

bool has_f16c() { return __builtin_cpu_supports("f16c") && __builtin_cpu_supports("avx"); }
#endif

/// True if any of the kBlock elements has every exponent bit set. The fixed length lets the
/// compiler vectorise without a remainder loop, also at -O2.
constexpr int64_t kBlock = 1024;
template <class Word, Word kExponent>
bool block_has_non_finite(const Word* in) {
  Word any = 0;
  for (int64_t i = 0; i < kBlock; ++i)
    any |= static_cast<Word>((in[i] & kExponent) == kExponent ? 1 : 0);
  return any != 0;
}

template <class Word, Word kExponent>
int64_t find_non_finite(const Word* in, int64_t count) {
  int64_t i = 0;
  while (i + kBlock <= count && !block_has_non_finite<Word, kExponent>(in + i)) i += kBlock;
  for (; i < count; ++i)
    if ((in[i] & kExponent) == kExponent) return i;
  return -1;
}

/// Memory of big tensors that were let go of, for the next of the same size: layers are alike and
/// come one after the other, and to touch new memory takes about as long as to read a layer.
class SpareMemory {
 public:
  /// Null if there is none; what is there then is of no use to layers of today's size.
  void* take(size_t bytes) {
    const std::lock_guard lock(access_);
    const auto found = by_size_.find(bytes);
    void* const memory = found == by_size_.end() ? nullptr : found->second;
    if (memory != nullptr) {
      by_size_.erase(found);
    } else {
      for (const auto& [size, unused] : by_size_) std::free(unused);
      by_size_.clear();
    }
    return memory;
  }
  void give(size_t bytes, void* memory) {
    const std::lock_guard lock(access_);
    by_size_.emplace(bytes, memory);
  }

 private:
  std::mutex access_;
  std::multimap<size_t, void*> by_size_;
};

SpareMemory& spare_memory() {
  static auto* const spare = new SpareMemory;  // never destroyed: tensors may live longer
  return *spare;
}

/// Memory that a tensor of so many bytes takes: whole pages if it is big.
size_t rounded(size_t bytes) {
  const size_t unit = bytes >= kHugePage ? kPage : kCacheLine;
  return (bytes + unit - 1) / unit * unit;
}

std::shared_ptr<std::byte[]> allocate(size_t bytes) {
  const size_t size = rounded(bytes);
  const bool big = bytes >= kHugePage;
  void* memory = big ? spare_memory().take(size) : nullptr;
  if (memory == nullptr && posix_memalign(&memory, big ? kHugePage : kCacheLine, size) != 0)
    throw Error(Fault::failure, {.what = "out of memory",
                                 .found = std::to_string(bytes) + " bytes wanted for one tensor"});
#ifdef __linux__
  if (big) madvise(memory, size, MADV_HUGEPAGE);
#endif
  return {static_cast<std::byte*>(memory), [size, big](std::byte* p) {
            if (big)
              spare_memory().give(size, p);
            else
              std::free(p);
          }};
}

}  // namespace

const char* element_name(ElementType type) {
  switch (type) {
    case ElementType::float32: return "float32";
    case ElementType::float16: return "float16";
    case ElementType::bfloat16: return "bfloat16";
  }
  return "unknown";
}

float half_to_float(uint16_t bits) {
  const uint32_t sign = uint32_t{bits & 0x8000u} << 16;
  const uint32_t exponent = (bits >> 10) & 0x1Fu;
  const uint32_t fraction = bits & 0x3FFu;
  if (exponent == 0) {  // zero or subnormal: fraction * 2^-24, exact in float32
    const float magnitude = static_cast<float>(fraction) * 0x1p-24f;
    return sign != 0 ? -magnitude : magnitude;
  }
  if (exponent == 31) {
    const uint32_t quiet = fraction != 0 ? 0x400000u : 0u;
    return std::bit_cast<float>(sign | 0x7F800000u | (fraction << 13) | quiet);
  }
  return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (fraction << 13));
}

uint16_t float_to_half(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u)  // NaN: keep the top of the payload, make it quiet
    return static_cast<uint16_t>(sign | 0x7E00u | ((magnitude >> 13) & 0x3FFu));
  if (magnitude >= 0x477FF000u)  // 65520 and more round to infinity
    return static_cast<uint16_t>(sign | 0x7C00u);
  if (magnitude < 0x38800000u) {  // below 2^-14: adding 0.5 rounds at bit 2^-24, to nearest even
    const float rounded = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(rounded) - 0x3F000000u));
  }
  const uint32_t odd = (magnitude >> 13) & 1u;
  return static_cast<uint16_t>(sign | ((magnitude - 0x38000000u + 0xFFFu + odd) >> 13));
}

void widen(ElementType type, const void* raw, int64_t count, float* out) {
  if (count <= 0) return;
  if (type == ElementType::float32) {
    std::memcpy(out, raw, static_cast<size_t>(count) * sizeof(float));
    return;
  }
  const auto* in = static_cast<const uint16_t*>(raw);
#ifdef KVSIM_X86
  if (type == ElementType::float16 && has_f16c()) return widen_half_f16c(in, count, out);
  if (type == ElementType::bfloat16 && __builtin_cpu_supports("avx2"))
    return widen_bfloat_avx2(in, count, out);
#endif
  type == ElementType::float16 ? widen_half_portable(in, count, out)
                               : widen_bfloat_portable(in, count, out);
}

void narrow(ElementType type, const float* values, int64_t count, void* raw) {
  if (count <= 0) return;
  if (type == ElementType::float32) {
    std::memcpy(raw, values, static_cast<size_t>(count) * sizeof(float));
    return;
  }
  auto* out = static_cast<uint16_t*>(raw);
  if (type == ElementType::bfloat16) {
    for (int64_t i = 0; i < count; ++i) out[i] = float_to_bfloat(values[i]);
    return;
  }
#ifdef KVSIM_X86
  if (has_f16c()) return narrow_half_f16c(values, count, out);
#endif
  narrow_half_portable(values, count, out);
}

int64_t first_non_finite(ElementType type, const void* raw, int64_t count) {
  switch (type) {
    case ElementType::float32:
      return find_non_finite<uint32_t, 0x7F800000u>(static_cast<const uint32_t*>(raw), count);
    case ElementType::float16:
      return find_non_finite<uint16_t, 0x7C00u>(static_cast<const uint16_t*>(raw), count);
    case ElementType::bfloat16:
      return find_non_finite<uint16_t, 0x7F80u>(static_cast<const uint16_t*>(raw), count);
  }
  return -1;
}

Tensor::Tensor(ElementType type, std::array<int64_t, 3> shape) : type_(type), shape_(shape) {
  assert(shape[0] >= 0 && shape[1] >= 0 && shape[2] >= 0);
  data_ = allocate(std::max<size_t>(bytes(), 1));
}

}  // namespace kvsim

#undef KVSIM_X86
