#pragma once
#include <sys/mman.h>

#include <cstdlib>
#include <new>

#include "sim/backend/backend.hpp"
#include "sim/backend/cpu/kernels.hpp"

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

/// The shift under the exponential of a row is its maximum when it was last raised; it is raised
/// when a score exceeds it by more than this. exp(20) times any number of keys is far from
/// overflow, and what is scaled down then weighs less than 2e-9 of the row, so the rounding of the
/// factor does not matter.
inline constexpr float kSlack = 20.0f;
/// A score that is not there, and the maximum of no scores.
inline constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

/// A sink this far above all scores leaves them less than 1e-300, and exp() of more is infinite.
inline constexpr double kSinkAlone = 690.0;
/// Logit of a query head's sink; -inf without one.
inline double sink_logit(const LayerTrace& layer, int64_t head) {
  return static_cast<double>(layer.attention_sink.empty() ? kMinusInfinity
                                                          : layer.attention_sink[head]);
}
/// exp(sink - shift), finite; 0 without a sink, whose logit is -inf.
inline double sink_mass(double sink, double shift) {
  return std::isinf(sink) ? 0 : std::exp(std::min(sink - shift, kSinkAlone));
}
/// ln of the sum of exponentials, which is `total` under `shift`, the sink's sink_mass() included.
inline double log_sum_with_sink(double shift, double total, double sink) {
  return sink - shift > kSinkAlone ? sink : shift + std::log(total);
}

/// Rows begin..end-1 of slice `a` of a tensor as float32 with row stride `ld` >= columns; columns
/// beyond the tensor's are zero. Returns the tensor's own memory when that will do.
const float* load_rows(const Tensor& tensor, int64_t a, int64_t begin, int64_t end, int64_t ld,
                       Scratch<float>& buffer);

/// Bytes of such rows as they are stored, for bringing them near.
std::span<const std::byte> stored_rows(const Tensor& tensor, int64_t a, int64_t begin, int64_t end);

/// One stored query row of a tile.
struct QueryRow {
  int64_t head = 0;  ///< query head
  int64_t row = 0;   ///< index into the stored queries
};

/// Whether these kernels multiply rows of `items` numbers of two tensors as they are stored, as
/// pairs of bfloat16.
bool multiplies_pairs(const Kernels& kernels, const Tensor& left, const Tensor& right,
                      int64_t items);

/// Rows from `begin` on of slice a of a tensor of bfloat16, as pairs: [rows][items / 2].
const float* stored_pairs(const Tensor& tensor, int64_t a, int64_t begin);

/// Sets the values of a product to whole rows of slice a as load_rows gives them.
void set_values(const Tensor& tensor, int64_t a, Range rows, Scratch<float>& buffer,
                ProductTask& task);

/// Queries and keys of a layer as the kernels multiply them: scaled queries and keys in float32,
/// or, where kernels and trace allow it, pairs of bfloat16.
class ScoreOperands {
 public:
  ScoreOperands(const Kernels& kernels, const LayerTrace& layer)
      : layer_(layer), pairs_(multiplies_pairs(kernels, layer.k, layer.q, layer.k.dim(2))),
        depth_(pairs_ ? layer.k.dim(2) / 2 : layer.k.dim(2)),
        scale_(static_cast<float>(layer.scale)) {}

  bool pairs() const { return pairs_; }
  int64_t depth() const { return depth_; }  ///< items of a row: d, or pairs
  float scale() const { return scale_; }    ///< of products of pairs

  /// Transposed queries qt[depth][ld]: column r is rows[r], columns beyond are zero.
  void load_queries(std::span<const QueryRow> rows, int64_t ld, float* qt) const {
    const Tensor& q = layer_.q;
    std::vector<float> query(depth_);
    std::fill(qt, qt + depth_ * ld, 0.0f);
    for (int64_t r = 0; r < std::ssize(rows); ++r) {
      if (pairs()) {
        std::memcpy(query.data(), q.row(rows[r].head, rows[r].row), query.size() * sizeof(float));
      } else {
        q.read(rows[r].head, rows[r].row, rows[r].row + 1, query.data());
        for (float& x : query) x *= scale_;
      }
      for (int64_t j = 0; j < depth_; ++j) qt[j * ld + r] = query[j];
    }
  }
  /// Keys begin..end-1 of a KV head, [keys][depth]; `buffer` may be used.
  const float* load_keys(int64_t kv_head, int64_t begin, int64_t end,
                         Scratch<float>& buffer) const {
    return pairs() ? stored_pairs(layer_.k, kv_head, begin)
                   : load_rows(layer_.k, kv_head, begin, end, depth_, buffer);
  }
  /// Scores of such keys for queries qt[depth][ld]; output and visibility are left to the caller.
  ScoreTask task(const float* keys, int64_t count, const float* qt, int64_t ld) const {
    ScoreTask task{};
    task.k = keys;
    task.keys = count;
    task.d = depth_;
    task.qt = qt;
    task.pairs = pairs();
    task.scale = scale_;
    task.ld = ld;
    task.softcap = static_cast<float>(layer_.softcap);
    return task;
  }

 private:
  const LayerTrace& layer_;
  bool pairs_;
  int64_t depth_;
  float scale_;
};

/// How the CPU backend cuts its loops, so that what is read again is still near. No result depends
/// on it but for rounding. 0: what the kernels of the instruction set take.
struct Shapes {
  int64_t tile_rows = 96;                ///< query rows of a tile of the replay; <= kTileRows
  int64_t one_chunk = 4096;              ///< a prompt of so many keys is one chunk
  int64_t chunk = 2048;                  ///< keys per chunk of a longer one
  int64_t sum_bytes = int64_t{8} << 20;  ///< exp-scores of a tile of sums of attention
  int64_t index_block = 0;               ///< keys of a block of a product, through an index
  int64_t row_block = 0;                 ///< and one after the other
  int64_t score_block = 0;               ///< keys whose scores are finished together
};

/// A member of Shapes, and what `bench/run.sh --only shapes` tries beside the default.
struct ShapeMember {
  const char* name;
  int64_t Shapes::*value;
  const char* forms;  ///< of the benchmark, that it matters to
  std::array<int64_t, 3> others;
};
constexpr ShapeMember kShapeMembers[] = {
    {"tile_rows", &Shapes::tile_rows, "fused", {24, 48, 72}},
    {"one_chunk", &Shapes::one_chunk, "fused", {1024, 2048, 8192}},
    {"chunk", &Shapes::chunk, "fused", {1024, 4096, 8192}},
    {"index_block", &Shapes::index_block, "fused", {32, 64, 96}},
    {"row_block", &Shapes::row_block, "fused", {64, 96, 256}},
    {"score_block", &Shapes::score_block, "fused,sums", {48, 192, 384}},
    {"sum_bytes", &Shapes::sum_bytes, "sums", {2 << 20, 4 << 20, 16 << 20}}};

/// A file holds a verb, or a few.
class CpuBackend : public Backend {
 public:
  explicit CpuBackend(const Shapes& shapes) : kernels_(choose_kernels()), shapes_(shapes) {}

  std::string name() const override { return "cpu"; }
  std::string device() const override;
  void attention(const LayerTrace& layer, const AttentionRequest& request,
                 AttentionBlock& block) override;
  std::vector<Table<double>> attention_sums(const LayerTrace& layer,
                                            const AttentionSumRequest& request) override;
  void attend(const LayerTrace& layer, std::span<const SlotRows> owners) override;
  void output_metrics(const LayerTrace& layer, std::span<const HeadPair> pairs,
                      Range entries) override;
  void value_products(const LayerTrace& layer, int kv_head, const double* y, int64_t rows,
                      Range entries, double* out) override;
  void projected_norms(const LayerTrace& layer, Norm norm, Range entries, float* out) override;
  void value_norms(const LayerTrace& layer, Norm norm, Range entries, float* out) override;
  void replay(const LayerTrace& layer, const ReplayRequest& request,
              const std::function<void(const ReplayBlock&)>& sink) override;
  void read_outputs(const float* delta, int64_t count, float* out) override {
    std::copy_n(delta, count, out);
  }
  std::unique_ptr<Projection> projection(const LayerTrace& layer) override;

 private:
  const Kernels& kernels_;
  const Shapes shapes_;
  ReplayMemory replay_memory_;
};

std::unique_ptr<Backend> make_cpu_backend(const Shapes& shapes);

}  // namespace kvsim
