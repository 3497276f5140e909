#pragma once
#include "sim/backend/backend.hpp"
#include "sim/backend/cpu/kernels.hpp"
#include "sim/backend/cpu/scratch.hpp"
#include "sim/backend/cpu/shapes.hpp"

namespace kvsim {

// The verbs of the CPU backend, one file each; see Backend for what they compute.
void cpu_attention(const Kernels& kernels, const LayerTrace& layer, const AttentionRequest& request,
                   AttentionBlock& block);
std::vector<Table<double>> cpu_attention_sums(const Kernels& kernels, const Shapes& shapes,
                                              const LayerTrace& layer,
                                              const AttentionSumRequest& request,
                                              std::vector<TileMemory>& memory);
void cpu_attend(const Kernels& kernels, const LayerTrace& layer, std::span<const SlotRows> owners,
                AttendMemories& memories);
void cpu_output_metrics(const Kernels& kernels, const LayerTrace& layer,
                        std::span<const HeadPair> pairs, Range entries);
void cpu_value_products(const Kernels& kernels, const LayerTrace& layer, int kv_head,
                        const double* y, int64_t rows, Range entries, double* out);
void cpu_replay(const Kernels& kernels, const Shapes& shapes, const LayerTrace& layer,
                const ReplayRequest& request, const std::function<void(const ReplayBlock&)>& sink,
                ReplayMemory& memory);
void cpu_projected_norms(const Kernels& kernels, const LayerTrace& layer, Norm norm, Range entries,
                         float* out);
void cpu_value_norms(const Kernels& kernels, const LayerTrace& layer, Norm norm, Range entries,
                     float* out);
std::unique_ptr<Projection> cpu_projection(const Kernels& kernels, const LayerTrace& layer,
                                           ReplayMemory& memory);

}  // namespace kvsim
