// Attention over slots: logits of the queries of an owner are stored on the device, weighted there,
// and their softmax taken. Slots come from the host with every call.

#include "sim/backend/cuda/context.hpp"
#include "sim/backend/cuda/device.hpp"
#include "sim/backend/cuda/scores.hpp"

namespace kvsim::cuda {
namespace {

constexpr int kSlotThreads = 128;
constexpr int64_t kLeastRows = 16;  // fewer are done before slots are brought
constexpr int kTogether = 64;  // float32 products that are summed before they meet a float64 sum

struct WeighedRows {
  float* logits;  ///< [rows][slots]
  int64_t slots;
  int64_t first, rows_of_head;  ///< the first row among those of all heads
  const float* weight;          ///< [heads][slots]
};

// One block per row, threads over slots: a read and a write of each logit, memory sets the time.
__global__ void add_log_weights(WeighedRows p) {
  const int64_t row = blockIdx.x;
  const float* const weight = p.weight + (p.first + row) / p.rows_of_head * p.slots;
  for (int64_t s = threadIdx.x; s < p.slots; s += kSlotThreads)
    p.logits[row * p.slots + s] += weight[s];
}

struct WeighedValues {
  const float* attention;  ///< [rows][slots]
  const float* values;     ///< [slots][dv]
  int64_t slots;
  int dv;
  float* z;  ///< [rows][dv]
};

// One block per row, one thread per column; a head wider than the block takes several rounds.
// Values are read once per row, from the second-level cache while the slots of an owner fit there.
__global__ void sum_values(WeighedValues p) {
  const int64_t row = blockIdx.x;
  const float* const a = p.attention + row * p.slots;
  for (int c = static_cast<int>(threadIdx.x); c < p.dv; c += kSlotThreads) {
    double sum = 0;
    for (int64_t first = 0; first < p.slots; first += kTogether) {
      const int64_t end = first + kTogether < p.slots ? first + kTogether : p.slots;
      float part = 0;
      for (int64_t s = first; s < end; ++s) part += a[s] * p.values[s * p.dv + c];
      sum += static_cast<double>(part);
    }
    p.z[row * p.dv + c] = static_cast<float>(sum);
  }
}

/// Rows of `width` floats with zeros up to `padded` behind each.
void append_padded(const float* from, int64_t rows, int64_t width, int64_t padded,
                   std::vector<float>& to) {
  const size_t before = to.size();
  to.resize(before + static_cast<size_t>(rows * padded), 0.0f);
  for (int64_t r = 0; r < rows; ++r)
    std::copy_n(from + r * width, width,
                to.begin() + static_cast<std::ptrdiff_t>(before) + r * padded);
}

/// One owner's slots on the device.
class OwnerOnDevice {
 public:
  OwnerOnDevice(Context& context, const LayerTrace& trace, const SlotRows& owner)
      : context_(context), memory_(context.slots), trace_(trace), owner_(owner),
        slots_(owner.slots()), depth_(padded(trace.k.dim(2))) {
    const Stream& stream = context.compute;
    std::vector<float> keys, values, queries;
    bool weighs = false;
    for (const SlotSegment& segment : owner.segments) {
      append_padded(segment.keys, segment.count, trace.k.dim(2), depth_, keys);
      if (owner.outputs != nullptr)
        values.insert(values.end(), segment.values,
                      segment.values + segment.count * trace.value_dim());
      weighs |= segment.log_weight != nullptr && segment.count > 0;
    }
    append_padded(owner.queries, owner.heads * owner.rows, trace.k.dim(2), depth_, queries);
    upload(memory_.keys, keys, stream);
    if (owner.outputs != nullptr) upload(memory_.values, values, stream);
    upload(memory_.queries, queries, stream);
    if (weighs) weights_ = upload(memory_.weights, log_weights(), stream);
    if (owner.sinks != nullptr)
      sinks_ = upload(memory_.sinks, std::vector<float>(owner.sinks, owner.sinks + owner.heads),
                      stream);
  }

  /// Rows whose logits and attention may be on the device together.
  int64_t most_rows() const { return rows_together(context_.memory, slots_); }

  void run(int64_t first, int64_t count) {
    const Stream& stream = context_.compute;
    memory_.rows.clear();
    for (int64_t r = first; r < first + count; ++r)
      memory_.rows.add(r / owner_.rows, r,
                       owner_.seen != nullptr ? owner_.seen[r % owner_.rows] : slots_);
    const RowTable table = memory_.rows.upload(stream);
    float* const logits = memory_.logits.reserve(count * slots_);
    Scores scores{};
    scores.rows = table;
    scores.count = count;
    scores.queries = memory_.queries.data();
    scores.keys = memory_.keys.data();
    scores.key_count = scores.ld = slots_;
    scores.depth = static_cast<int>(depth_);
    scores.scale = static_cast<float>(trace_.scale);
    scores.softcap = static_cast<float>(trace_.softcap);
    scores.logits = logits;
    launch_scores(ElementType::float32, scores, stream);
    if (weights_ != nullptr)
      launch(add_log_weights, dim3(static_cast<unsigned>(count)), kSlotThreads, 0, stream,
             WeighedRows{logits, slots_, first, owner_.rows, weights_});
    const bool attends = owner_.outputs != nullptr || owner_.attention != nullptr;
    run_softmax(memory_, {count, slots_, table.head, sinks_, attends ? slots_ : 0}, stream);
    bring(first, count);
  }

 private:
  void bring(int64_t first, int64_t count) {
    const Stream& stream = context_.compute;
    const int64_t dv = trace_.value_dim();
    if (owner_.outputs != nullptr) {
      float* const z = memory_.outputs.reserve(count * dv);
      launch(sum_values, dim3(static_cast<unsigned>(count)), kSlotThreads, 0, stream,
             WeighedValues{memory_.attention.data(), memory_.values.data(), slots_,
                           static_cast<int>(dv), z});
      context_.downloads.bring(owner_.outputs + first * dv, z, count * dv, stream);
    }
    if (owner_.attention != nullptr)
      context_.downloads.bring(owner_.attention + first * slots_, memory_.attention.data(),
                               count * slots_, stream);
    if (owner_.log_sum_exp != nullptr)
      download(owner_.log_sum_exp + first, memory_.log_sum_exp.data(), count, stream);
    if (owner_.logits != nullptr)
      context_.downloads.bring(owner_.logits + first * slots_, memory_.logits.data(),
                               count * slots_, stream);
    stream.wait();
  }

  /// [heads][slots] of all segments.
  std::vector<float> log_weights() const {
    std::vector<float> all;
    for (int x = 0; x < owner_.heads; ++x)
      for (const SlotSegment& segment : owner_.segments) {
        const size_t before = all.size();
        all.resize(before + static_cast<size_t>(segment.count), 0.0f);
        if (segment.log_weight != nullptr)
          std::copy_n(segment.log_weight + x * segment.count, segment.count,
                      all.begin() + static_cast<std::ptrdiff_t>(before));
      }
    return all;
  }

  Context& context_;
  SlotMemory& memory_;
  const LayerTrace& trace_;
  const SlotRows& owner_;
  int64_t slots_, depth_;
  const float* weights_ = nullptr;
  const float* sinks_ = nullptr;
};

}  // namespace

void CudaBackend::attend(const LayerTrace& trace, std::span<const SlotRows> owners) {
  for (const SlotRows& owner : owners) {
    const int64_t all = owner.heads * owner.rows;
    if (all < kLeastRows) {
      host_->attend(trace, {&owner, 1});
      continue;
    }
    const std::lock_guard lock(context_.verb);
    check_shared_memory(context_, scores_memory(ElementType::float32, padded(trace.k.dim(2))),
                        trace);
    OwnerOnDevice on_device(context_, trace, owner);
    const int64_t step = on_device.most_rows();
    for (int64_t first = 0; first < all; first += step)
      on_device.run(first, std::min(step, all - first));
  }
}

}  // namespace kvsim::cuda
