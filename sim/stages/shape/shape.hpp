#pragma once
#include "sim/core/array.hpp"
#include "sim/stages/kind.hpp"
#include "sim/stages/parameter.hpp"
#include "sim/stages/settings.hpp"

namespace kvsim {
namespace keys {
extern const Declare block, block_score;
}
enum class BlockScore { mean, max, root_mean_square };  // words of block_score

/// Entries of the block that holds entry i: [kb, (k+1)b) of the n (policies.md 5.9).
Range block_of(const Settings& settings, int64_t entry, int64_t entries);

/// Gives every candidate the score of its block, [owners][n].
void score_blocks(const Settings& settings, Range candidates, Table<double>& scores);

/// Makes one score of those that the owners of a layer have for an entry, so that all of them keep
/// the same set (policies.md 5.9).
class Union : public Kind {
 public:
  using Kind::Kind;
  bool nests(const Settings&) const override { return true; }  // sees no budget
  bool goes_on() const override { return !unites(); }
  virtual bool unites() const { return true; }
  /// [owners][n]; only `candidates` count and change.
  virtual void apply(Range candidates, Table<double>& scores) const = 0;
};

}  // namespace kvsim
