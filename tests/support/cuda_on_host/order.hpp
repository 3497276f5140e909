#pragma once

namespace cuda_on_host {

/// Order in which the threads of a block run between barriers.
enum class Order { ascending, descending, shuffled };

}  // namespace cuda_on_host
