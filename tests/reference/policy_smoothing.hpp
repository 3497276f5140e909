#pragma once
#include <functional>

#include "tests/reference/policy_reference.hpp"

namespace kvsim::reference {

/// Delta = D_front - D_rear of the `free` best columns of each row; 0 when nothing is free or
/// there is one row. Rows may differ in length (keys that each query sees).
Rational drift(const std::vector<Row>& rows, int64_t free);

/// Fills what `stage1=mass` and the allocations over layers look at: mean attention of every
/// owner, the two biases, entropy, variance, variance of the summed attention.
void observe_layer(const PolicyCase& c,
                   const std::function<const Row&(int head, int64_t query)>& attention,
                   Scores& scores);

}  // namespace kvsim::reference
