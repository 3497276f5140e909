#pragma once
#include <cublas_v2.h>

#include <mutex>

#include "sim/backend/cuda/memory.hpp"
#include "sim/backend/cuda/walk.hpp"
#include "sim/backend/cuda_backend.hpp"
#include "sim/core/layer_trace.hpp"

namespace kvsim::cuda {

/// A table of query rows, made on the host and brought to the device.
class Rows {
 public:
  void clear() { query_.clear(), head_.clear(), begin_.clear(), end_.clear(); }
  /// Stored query `row` of a query head; it sees positions of the layer's window.
  void add(const LayerTrace& layer, int64_t head, int64_t row) {
    const int64_t position = layer.info->query_position[row];
    const int64_t window = layer.sliding_window;
    query_.push_back(static_cast<uint32_t>(head * layer.q.dim(1) + row));
    head_.push_back(static_cast<int32_t>(head));
    begin_.push_back(
        static_cast<int32_t>(window > 0 ? std::max<int64_t>(0, position - window + 1) : 0));
    end_.push_back(static_cast<int32_t>(position + 1));
  }
  /// Row `query` of the queries on the device; it sees positions 0..seen-1.
  void add(int64_t head, int64_t query, int64_t seen) {
    query_.push_back(static_cast<uint32_t>(query));
    head_.push_back(static_cast<int32_t>(head));
    begin_.push_back(0);
    end_.push_back(static_cast<int32_t>(seen));
  }
  int64_t count() const { return std::ssize(query_); }
  /// Visible positions of all rows together.
  int64_t begin() const { return *std::min_element(begin_.begin(), begin_.end()); }
  int64_t end() const { return *std::max_element(end_.begin(), end_.end()); }
  /// In one piece, without waiting for it.
  RowTable upload(cudaStream_t stream) {
    sent_.wait();  // the one before
    uint32_t* to = here_.reserve(4 * count());
    to = std::ranges::copy(query_, to).out;
    for (const auto* column : {&head_, &begin_, &end_}) to = std::ranges::copy(*column, to).out;
    const uint32_t* const table = upload_pinned(there_.reserve(4 * count()), here_.data(),
                                                4 * count(), stream);
    sent_.record(stream);
    const auto* const numbers = reinterpret_cast<const int32_t*>(table);
    return {table, numbers + count(), numbers + 2 * count(), numbers + 3 * count()};
  }

 private:
  std::vector<uint32_t> query_;
  std::vector<int32_t> head_, begin_, end_;
  PinnedBuffer<uint32_t> here_;  ///< [query, head, begin, end][rows]
  DeviceBuffer<uint32_t> there_;
  Event sent_;
};

/// Brings results to memory of the host that is not pinned, through pieces that are: while one
/// piece is on its way, all threads copy the one before to its place.
class Downloads {
 public:
  /// There when it returns.
  template <class T>
  void bring(T* to, const T* from, int64_t count, const Stream& stream) {
    bring_bytes(reinterpret_cast<std::byte*>(to), reinterpret_cast<const std::byte*>(from),
                count * static_cast<int64_t>(sizeof(T)), stream);
  }

 private:
  void bring_bytes(std::byte* to, const std::byte* from, int64_t bytes, const Stream& stream);

  static constexpr int kPieces = 2;
  PinnedBuffer<std::byte> pieces_[kPieces];
  Event there_[kPieces];
};

/// Memory of the replay, kept from layer to layer.
struct ReplayMemory {
  Rows rows;
  DeviceBuffer<uint32_t> list;
  DeviceBuffer<WalkItem> items;
  DeviceBuffer<float> importance, sinks;
  DeviceBuffer<FinishPlan> plans;
  DeviceBuffer<uint8_t> everything;
  DeviceBuffer<RowSums> sums;
  DeviceBuffer<float> outputs, z, delta;
  DeviceBuffer<double> full, kept;
  PinnedBuffer<uint32_t> list_here;
  PinnedBuffer<double> sums_here;  ///< of the host: `full`, then `kept`
  PinnedBuffer<float> z_here;
  ReplayBlock block;

  /// Whether these are outputs that stayed on the device.
  bool holds(const float* x) const {
    return std::less_equal<>()(delta.data(), x) && std::less<>()(x, delta.data() + delta.size());
  }
};

// Device memory of verbs that are called many times per layer, kept from call to call: to allocate
// it anew would take longer than many a call, and wait for all that runs.

/// Of rows of attention whose logits are stored.
struct SoftmaxMemory {
  Rows rows;
  DeviceBuffer<float> logits;     ///< [rows][positions that any row sees]
  DeviceBuffer<float> attention;  ///< [rows][columns]
  DeviceBuffer<float> maximum;
  DeviceBuffer<double> inverse, log_sum_exp;
  DeviceBuffer<float> sinks;
};

/// Of attention() and attention_sums().
struct RowMemory : SoftmaxMemory {
  DeviceBuffer<uint32_t> list;  ///< 0, 1, 2, ...
  DeviceBuffer<WalkItem> items;
  DeviceBuffer<RowSums> states;
  DeviceBuffer<float> outputs, z;
  DeviceBuffer<double> weights, bounds, sums;
};

/// Of attend().
struct SlotMemory : SoftmaxMemory {
  DeviceBuffer<float> keys, values, queries;  ///< of one owner
  DeviceBuffer<float> weights, outputs;
};

/// Of value_products() and output_metrics().
struct ValueMemory {
  DeviceBuffer<double> wide, factor, products, forms;
};

/// Of value_norms() and projected_norms().
struct NormMemory {
  DeviceBuffer<float> factors, norms;
  DeviceBuffer<double> sums;
};

/// Of the Projections, of which the weights and factors are that were asked for last.
struct ProjectionMemory {
  int64_t projections = 0;  ///< made so far: each has its number
  int64_t weights_of = 0, factors_of = 0;
  DeviceBuffer<float> weights;  ///< [Hq * columns][width] float32
  DeviceBuffer<float> factors;
  DeviceBuffer<float> rows, products;
  DeviceBuffer<double> sums;
  DeviceBuffer<int64_t> steps;
  PinnedBuffer<float> staged;
};

/// Rows on the device are whole steps of the tensor cores long, zeros beyond the tensor's columns.
constexpr int64_t kRowMultiple = 16;
constexpr int64_t padded(int64_t count) {
  return (count + kRowMultiple - 1) / kRowMultiple * kRowMultiple;
}

/// A layer in device memory. All tensors have one element type: that of the trace, or float32 if
/// the trace mixes types.
struct DeviceLayer {
  Tensor q, k, v, wo;  ///< the host's, which say whose layer this is
  ElementType type = ElementType::float32;
  int64_t depth = 0;                      ///< d, padded
  int64_t columns = 0;                    ///< dv, padded
  int64_t width = 0;                      ///< D, padded
  int64_t most_keys = 0;                  ///< positions whose keys and values fit at a time
  Range keys;                             ///< positions whose keys and values are there
  DeviceBuffer<std::byte> queries;        ///< [Hq][M][depth]
  DeviceBuffer<std::byte> device_keys;    ///< [Hkv][keys][depth]
  DeviceBuffer<std::byte> device_values;  ///< [Hkv][keys][columns]
  DeviceBuffer<std::byte> output;         ///< [Hq][columns][width]
  Event ready;

  bool is(const LayerTrace& layer) const {
    return !k.empty() && k.data() == layer.k.data() && q.data() == layer.q.data() &&
           v.data() == layer.v.data() && wo.data() == layer.wo.data();
  }
  void forget() { q = k = v = wo = Tensor(); }  ///< lets go of the host's memory
};

/// Brings layers to the device: the one in work, and the next one while that is worked on.
class LayerStore {
 public:
  /// `memory`: bytes of the device that may be used.
  explicit LayerStore(int64_t memory) : memory_(memory) {}

  /// The layer, brought now unless it is there. What is added to `compute` later finds it there.
  DeviceLayer& get(const LayerTrace& layer, const Stream& compute);
  /// Makes the keys and values of some positions be there, at most `most_keys` of them.
  void show_keys(DeviceLayer& layer, Range keys, const Stream& compute);
  /// Starts to bring a layer that `get` will ask for next. May run beside the verbs.
  void prefetch(const LayerTrace& layer);

 private:
  void bring(DeviceLayer& to, const LayerTrace& layer);
  void bring_keys(DeviceLayer& to, Range keys);
  void copy(const Tensor& tensor, ElementType type, Range rows, int64_t padded_rows,
            int64_t columns, DeviceBuffer<std::byte>& to);

  static constexpr int kPieces = 2;
  int64_t memory_;
  std::mutex access_;
  DeviceLayer layers_[2];
  int current_ = 0;
  bool waiting_ = false;  ///< the other one was brought ahead and not yet asked for
  Stream copies_;
  PinnedBuffer<std::byte> pieces_[kPieces];  ///< on their way
  Event sent_[kPieces];
  int next_piece_ = 0;
};

}  // namespace kvsim::cuda

/// Every call of cuBLAS goes through this.
#define KVSIM_BLAS_CHECK(call)                                                                   \
  do {                                                                                           \
    const cublasStatus_t kvsim_status = (call);                                                  \
    if (kvsim_status != CUBLAS_STATUS_SUCCESS)                                                   \
      ::kvsim::cuda::call_failed(#call, __FILE__, __LINE__, cublasGetStatusString(kvsim_status), \
                                 kvsim_status == CUBLAS_STATUS_ALLOC_FAILED);                    \
  } while (false)

namespace kvsim::cuda {

/// Parts that all verbs share: the device, a stream for the kernels, and the layers on the device.
/// Verbs run one at a time; whoever comes from another thread waits.
struct Context {
  explicit Context(int64_t bytes) : memory(bytes), store(bytes) {
    KVSIM_BLAS_CHECK(cublasCreate(&blas));
  }
  ~Context() { cublasDestroy(blas); }
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  std::string device;         ///< name, for the run record
  int64_t memory;             ///< bytes of the device that may be used
  int64_t shared_memory = 0;  ///< bytes that a block may have
  std::mutex verb;
  Stream compute;
  LayerStore store;
  ReplayMemory replay;
  RowMemory rows;
  SlotMemory slots;
  ValueMemory values;
  NormMemory norms;
  ProjectionMemory projection;
  Downloads downloads;
  cublasHandle_t blas = nullptr;
};

/// Stops with one line if a block would need more shared memory than the device has.
void check_shared_memory(const Context& context, int64_t bytes, const LayerTrace& layer);

/// visit(keys) for every part of positions begin..end-1 that fits on the device, after it is there.
template <class Visit>
void for_each_part(Context& context, DeviceLayer& layer, Range positions, int64_t most,
                   const Visit& visit) {
  const int64_t step = std::max<int64_t>(1, std::min(most, layer.most_keys));
  for (int64_t begin = positions.begin; begin < positions.end; begin += step) {
    const Range part{begin, std::min(positions.end, begin + step)};
    context.store.show_keys(layer, part, context.compute);
    visit(part);
  }
}

/// Calls work(Type()) with the operand type of a layer; see tiles.hpp.
template <class Bfloat16, class Float16, class Float32, class Work>
void with_types(ElementType type, const Work& work) {
  if (type == ElementType::bfloat16)
    work(Bfloat16());
  else if (type == ElementType::float16)
    work(Float16());
  else
    work(Float32());
}

/// A file holds a verb, or a few.
class CudaBackend : public PrefetchingBackend {
 public:
  CudaBackend(const cudaDeviceProp& properties, int64_t memory);

  std::string name() const override { return "cuda"; }
  std::string device() const override { return context_.device; }
  int64_t values_at_once() const override { return int64_t{1} << 24; }
  void begin(const LayerTrace& layer) override;
  void prefetch(const LayerTrace& layer) override { context_.store.prefetch(layer); }
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
  void read_outputs(const float* delta, int64_t count, float* out) override;
  std::unique_ptr<Projection> projection(const LayerTrace& layer) override;

 private:
  Context context_;
  std::unique_ptr<Backend> host_ = make_cpu_backend();  ///< for a few rows
};

}  // namespace kvsim::cuda
