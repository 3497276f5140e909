// Instructions of a whole warp, as the PTX manual defines them (mma.sync m16n8k16 and m16n8k8,
// ldmatrix). Products are exact and their sum is cut off at 24 bits instead of rounded: tensor
// cores truncate, and what is judged here should not be better than they are.
#include "sim/core/tensor.hpp"
#include "tests/support/cuda_on_host/device.hpp"

namespace kvsim::cuda {
namespace {

struct MatrixLane {
  const unsigned char* row;
  uint32_t r[4];
};

template <bool kTransposed>
void load_together(void* const (&lanes)[32]) {
  for (int lane = 0; lane < 32; ++lane) {
    const int g = lane / 4, t = lane % 4;
    for (int i = 0; i < 4; ++i) {
      uint32_t word = 0;
      for (int e = 0; e < 2; ++e) {
        const int row = kTransposed ? 2 * t + e : g, column = kTransposed ? g : 2 * t + e;
        const unsigned char* from = static_cast<MatrixLane*>(lanes[8 * i + row])->row;
        uint16_t element;
        std::memcpy(&element, from + 2 * column, 2);
        word |= static_cast<uint32_t>(element) << (16 * e);
      }
      static_cast<MatrixLane*>(lanes[lane])->r[i] = word;
    }
  }
}

template <bool kTransposed>
void load(uint32_t (&r)[4], const void* row) {
  MatrixLane lane{static_cast<const unsigned char*>(row), {}};
  if (reinterpret_cast<uintptr_t>(row) % 16 != 0)
    throw std::logic_error("a matrix row is not aligned to 16 bytes");
  cuda_on_host::warp_meet(&lane, load_together<kTransposed>);
  std::memcpy(r, lane.r, sizeof(r));
}

struct MmaLane {
  float* c;
  const uint32_t* a;
  uint32_t b[2];
};

float truncated(double x) {
  const float y = static_cast<float>(x);
  const bool away = std::fabs(static_cast<double>(y)) > std::fabs(x);
  return std::bit_cast<float>(std::bit_cast<uint32_t>(y) - (away ? 1 : 0));  // one step towards 0
}

/// c[16][8] += a[16][k] b[k][8]
void multiply_together(void* const (&lanes)[32], int depth, const double (&a)[16][16],
                       const double (&b)[16][8]) {
  double sum[16][8];
  const auto each = [&](auto visit) {
    for (int lane = 0; lane < 32; ++lane)
      for (int i = 0; i < 4; ++i)
        visit(static_cast<MmaLane*>(lanes[lane])->c[i],
              sum[lane / 4 + 8 * (i / 2)][2 * (lane % 4) + i % 2]);
  };
  each([](const float& c, double& into) { into = static_cast<double>(c); });
  for (int row = 0; row < 16; ++row)
    for (int k = 0; k < depth; ++k)
      for (int column = 0; column < 8; ++column) sum[row][column] += a[row][k] * b[k][column];
  each([](float& c, double from) { c = truncated(from); });
}

template <float (*kWiden)(uint16_t)>
void mma16_together(void* const (&lanes)[32]) {
  double a[16][16], b[16][8];
  const auto half = [](uint32_t word, int e) {
    return static_cast<double>(kWiden(static_cast<uint16_t>(word >> (16 * e))));
  };
  for (int lane = 0; lane < 32; ++lane) {
    const MmaLane& mine = *static_cast<MmaLane*>(lanes[lane]);
    const int g = lane / 4, t = lane % 4;
    for (int e = 0; e < 2; ++e) {
      for (int i = 0; i < 4; ++i) a[g + 8 * (i % 2)][2 * t + e + 8 * (i / 2)] = half(mine.a[i], e);
      for (int i = 0; i < 2; ++i) b[2 * t + e + 8 * i][g] = half(mine.b[i], e);
    }
  }
  multiply_together(lanes, 16, a, b);
}

void mma8_together(void* const (&lanes)[32]) {
  double a[16][16], b[16][8];
  const auto value = [](uint32_t bits) {  // the device looks at 19 bits only
    return static_cast<double>(bits_to_float(bits & 0xffffe000u));
  };
  for (int lane = 0; lane < 32; ++lane) {
    const MmaLane& mine = *static_cast<MmaLane*>(lanes[lane]);
    const int g = lane / 4, t = lane % 4;
    for (int i = 0; i < 4; ++i) a[g + 8 * (i % 2)][t + 4 * (i / 2)] = value(mine.a[i]);
    for (int i = 0; i < 2; ++i) b[t + 4 * i][g] = value(mine.b[i]);
  }
  multiply_together(lanes, 8, a, b);
}

void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
         void (*together)(void* const (&)[32])) {
  MmaLane lane{c, a, {b0, b1}};
  cuda_on_host::warp_meet(&lane, together);
}

float bf16_to_float(uint16_t bits) { return bits_to_float(static_cast<uint32_t>(bits) << 16); }

uint32_t pack(ElementType type, float low, float high) {
  uint16_t bits[2];
  const float values[2] = {low, high};
  narrow(type, values, 2, bits);
  return bits[0] | static_cast<uint32_t>(bits[1]) << 16;
}

}  // namespace

void load_matrices(uint32_t (&r)[4], const void* row) { load<false>(r, row); }
void load_matrices_transposed(uint32_t (&r)[4], const void* row) { load<true>(r, row); }
void mma_bf16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  mma(c, a, b0, b1, mma16_together<bf16_to_float>);
}
void mma_f16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  mma(c, a, b0, b1, mma16_together<half_to_float>);
}
void mma_tf32(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  mma(c, a, b0, b1, mma8_together);
}
float f16_to_float(uint16_t bits) { return half_to_float(bits); }
uint32_t pack_bf16(float low, float high) { return pack(ElementType::bfloat16, low, high); }
uint32_t pack_f16(float low, float high) { return pack(ElementType::float16, low, high); }

}  // namespace kvsim::cuda
