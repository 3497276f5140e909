#pragma once
#include "sim/backend/backend.hpp"
#include "sim/backend/cuda/context.hpp"

namespace kvsim::cuda {

// The verbs of the CUDA backend, one file each; see Backend for what they compute.
void attention(Context& context, const LayerTrace& layer, const AttentionRequest& request,
               AttentionBlock& block);
void attend(Context& context, const LayerTrace& layer, std::span<const SlotRows> owners);
std::vector<Table<double>> attention_sums(Context& context, const LayerTrace& layer,
                                          const AttentionSumRequest& request);
void output_metrics(Context& context, const LayerTrace& layer, std::span<const HeadPair> pairs,
                    Range entries);
void value_products(Context& context, const LayerTrace& layer, int kv_head, const double* y,
                    int64_t rows, Range entries, double* out);
void projected_norms(Context& context, const LayerTrace& layer, Norm norm, Range entries,
                     float* out);
void value_norms(Context& context, const LayerTrace& layer, Norm norm, Range entries, float* out);
void replay(Context& context, const LayerTrace& layer, const ReplayRequest& request,
            const std::function<void(const ReplayBlock&)>& sink);
std::unique_ptr<Projection> projection(Context& context, const LayerTrace& layer);

}  // namespace kvsim::cuda
