#pragma once
#include <vector>

#include "sim/core/tensor.hpp"
#include "tests/support/cuda_on_host/order.hpp"

namespace kvsim::host_cuda {

// Small kernels for tests of the host runtime, most of them broken when asked to be.

/// Every thread stores its number and reads that of its mirror image, with or without a barrier.
std::vector<float> reversed(::cuda_on_host::Order order, bool barrier);
float read_unwritten(bool shared);
/// Writes float `index` of 16 in device or shared memory.
void write_at(int index, bool shared);
void divergent_barrier();
void launch_nothing();
float copied(bool wait);
float downloaded(bool wait);
/// Whether that many bytes come through the pieces of Downloads as they are.
bool brings(int64_t bytes);
/// Products of small integers by tiles.hpp.
double largest_product_error(ElementType type);

/// Numbers out of every verb on one small layer.
std::vector<double> run_all_verbs(::cuda_on_host::Order order, size_t memory = 0);

}  // namespace kvsim::host_cuda
