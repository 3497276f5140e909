#pragma once
#include <vector>

#include "sim/backend/layer_work.hpp"

namespace kvsim {

/// Attention of the full cache at later steps, for what is compared with it: one set of slots after
/// the other asks for the same rows, which are computed once where they take little memory.
class FullAttention {
 public:
  /// `work` must outlive it.
  explicit FullAttention(LayerWork& work) : work_(work) {}

  /// How many steps rows() takes at a time.
  int64_t most_steps() const;
  /// Later steps first..first+steps-1, logits included, per KV head; valid until the next call.
  const std::vector<AttentionBlock>& rows(int64_t first, int64_t steps);

 private:
  LayerWork& work_;
  Range steps_;  ///< those in `blocks_`
  std::vector<AttentionBlock> blocks_;
};

}  // namespace kvsim
