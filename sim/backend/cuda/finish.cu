#include <cmath>

#include "sim/backend/cuda/finish.hpp"
#include "sim/backend/cuda/tiles.hpp"

namespace kvsim::cuda {
namespace {

constexpr int kFinishThreads = 128;

/// A softmax over some keys that grows: `prompt` and `later` masses and importances apart, and one
/// column of the outputs.
struct Growing {
  float maximum = kMinusInfinity;
  float prompt = 0, later = 0, prompt_importance = 0, later_importance = 0;
  float output = 0;

  __device__ void add(const RowSums& sums, float more, bool of_prompt) {
    if (sums.maximum == kMinusInfinity) return;
    const float top = fmaxf(maximum, sums.maximum);
    const float keep = maximum == kMinusInfinity ? 0.0f : exp2_fast((maximum - top) * kLog2E);
    const float factor = exp2_fast((sums.maximum - top) * kLog2E);
    maximum = top;
    prompt = prompt * keep + (of_prompt ? sums.mass * factor : 0.0f);
    later = later * keep + (of_prompt ? 0.0f : sums.mass * factor);
    prompt_importance = prompt_importance * keep + (of_prompt ? sums.importance * factor : 0.0f);
    later_importance = later_importance * keep + (of_prompt ? 0.0f : sums.importance * factor);
    output = output * keep + more * factor;
  }
  /// Of the softmax with its sink, which has a logit but no value.
  __device__ double total(float sink) const {
    const double above = static_cast<double>(sink) - static_cast<double>(maximum);
    return static_cast<double>(prompt) + static_cast<double>(later) +
           (sink > kMinusInfinity ? exp(fmin(above, kSinkAlone)) : 0);
  }
};

// One block per row, one thread per column of the values; a head wider than the block takes several
// rounds. Every thread carries the few sums of its row again, and the first writes the shares.
// Reads each state once and writes each result once, in whole lines: memory sets the time.
__global__ void finish_rows(Finish p) {
  const int64_t row = blockIdx.x;
  const int head = p.head[row];
  const float sink = p.sinks != nullptr ? p.sinks[head] : kMinusInfinity;
  for (int round = 0; round < p.dv; round += kFinishThreads) {
    const int c = round + static_cast<int>(threadIdx.x);
    const bool own = c < p.dv, first = c == 0;
    const auto state = [&](Growing& growing, int slot, bool of_prompt, bool output) {
      const int64_t at = slot * p.rows + row;
      growing.add(p.sums[at], own && output ? p.outputs[at * p.columns + c] : 0.0f, of_prompt);
    };
    Growing later, full;
    state(later, kLaterSlot, false, true);
    full = later;
    for (int i = 0; i < p.prompt_slots; ++i) state(full, kFirstPromptSlot + i, true, true);
    const double total = full.total(sink);
    const double shares[4] = {full.prompt / total, full.prompt_importance / total,
                              full.later / total, full.later_importance / total};
    const float z = full.output * static_cast<float>(1 / total);
    if (own) p.z[row * p.dv + c] = z;
    for (int i = 0; i < 4 && first; ++i) p.full[i * p.rows + row] = shares[i];

    for (int i = 0; i < p.plans; ++i) {
      const FinishPlan plan = p.plan[i];
      const bool output = plan.first_output >= 0;
      Growing kept = later;
      for (int band = 0; band < plan.bands; ++band) {
        state(kept, plan.first_slot + band, true, output);
        const int set = plan.first_set + band;
        // With nothing dropped the order of the sums must not show.
        const bool everything = p.everything[static_cast<int64_t>(set) * p.heads + head] != 0;
        if (output && own) {
          const float inverse = static_cast<float>(1 / kept.total(sink));
          p.delta[(static_cast<int64_t>(plan.first_output + band) * p.rows + row) * p.dv + c] =
              everything ? 0.0f : kept.output * inverse - z;
        }
        if (!first) continue;
        // A part is never larger than the whole, also in the last bit.
        const double factor = exp(static_cast<double>(kept.maximum) -
                                  static_cast<double>(full.maximum)) /
                              total;
        double* const to = p.kept + static_cast<int64_t>(set) * p.rows + row;
        *to = everything ? shares[0] : fmin(shares[0], kept.prompt * factor);
        to[static_cast<int64_t>(p.sets) * p.rows] = everything
                                                        ? shares[1]
                                                        : fmin(shares[1],
                                                               kept.prompt_importance * factor);
      }
    }
  }
}

__global__ void divide_outputs(FinishOutputs p) {
  const int64_t row = blockIdx.x;
  const float sink = p.sinks != nullptr ? p.sinks[p.head[row]] : kMinusInfinity;
  for (int c = static_cast<int>(threadIdx.x); c < p.dv; c += kFinishThreads) {
    Growing all;
    for (int slot = 0; slot < p.slots; ++slot) {
      const int64_t at = slot * p.rows + row;
      all.add(p.sums[at], p.outputs[at * p.columns + c], true);
    }
    p.z[row * p.dv + c] = all.output * static_cast<float>(1 / all.total(sink));
  }
}

}  // namespace

void launch_finish(const Finish& finish, cudaStream_t stream) {
  launch(finish_rows, dim3(static_cast<unsigned>(finish.rows)), kFinishThreads, 0, stream, finish);
}
void launch_finish_outputs(const FinishOutputs& finish, cudaStream_t stream) {
  launch(divide_outputs, dim3(static_cast<unsigned>(finish.rows)), kFinishThreads, 0, stream,
         finish);
}

}  // namespace kvsim::cuda
