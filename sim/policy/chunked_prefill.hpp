#pragma once
#include "sim/policy/policy_run.hpp"

namespace kvsim {

/// Positions at which the chunks of a prompt end: `chunk`, 2 `chunk`, ... and n.
std::vector<int64_t> chunk_ends(const Settings& settings, int64_t entries);

/// schedule=chunked on one layer (policies.md 12): the prompt comes in chunks, and what is in the
/// cache is compressed to B entries a head after each, so that what left is not there any more.
class ChunkedPrefill {
 public:
  /// Everything given must outlive it.
  ChunkedPrefill(const Record& record, uint64_t seed, const SideFiles& files);

  /// What is kept after the chunk that ends at a position.
  struct Compressed {
    int64_t end = 0;
    std::shared_ptr<const KeptSets> kept;
  };
  /// After each chunk of the layer's prompt, at B = `budget`.
  std::vector<Compressed> run(const LayerWork& work, int64_t budget) const;

 private:
  std::shared_ptr<KeptSets> compress(const LayerWork& work, int64_t budget, int64_t end,
                                     const std::vector<std::vector<uint32_t>>& cache) const;

  Record record_;
  uint64_t seed_;
  const SideFiles& files_;
};

}  // namespace kvsim
