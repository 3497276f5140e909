#pragma once
#include <memory>
#include <string>
#include <vector>

#include "sim/stages/kind.hpp"
#include "tests/support/random_run.hpp"

namespace kvsim::test {

using Vectors = std::vector<std::vector<double>>;

/// A trace of a few tokens whose attention is written down: with one-hot keys the logit of entry i
/// is the logarithm of the weight that a query gives it, so that A = weight / sum of weights.
struct SmallRun {
  int64_t prompt = 4;  ///< n; the trace holds one later token more
  int query_heads = 1;
  int kv_heads = 1;
  std::vector<int64_t> positions;  ///< of the stored queries, ascending
  /// [query head][stored query][position]; the query's own position last. 0: as good as unseen.
  std::vector<Vectors> weights;
  std::vector<Vectors> keys;      ///< [KV head][entry][d] instead of weights; queries are 0
  std::vector<Vectors> values;    ///< [KV head][entry][dv]; all (1) when empty
  std::vector<Vectors> output;    ///< [query head][dv][D]; identity when empty
  std::vector<int> layers = {0};  ///< all layers are equal; the model has no later ones
  std::vector<Span> spans;

  std::unique_ptr<RandomRun> build() const;
};

/// Settings with every key at its default but those of `changes` ("kernel=3,smooth=avg").
Settings settings_with(const std::string& changes);

/// Scores of the first layer for one record at one budget.
std::shared_ptr<const ScoredLayer> scores_of(const RandomRun& run, const std::string& record,
                                             const std::string& budget, uint64_t seed = 0,
                                             const SideFiles& files = MadeUpFiles());

/// The same of the candidates of one owner.
std::vector<double> score_row(const RandomRun& run, const std::string& record,
                              const std::string& budget, int64_t owner = 0,
                              const SideFiles& files = MadeUpFiles());

/// Kept entries of one owner of one layer.
std::vector<int> kept_entries(const RandomRun& run, const std::string& record,
                              const std::string& budget, int64_t owner = 0, size_t layer = 0,
                              const SideFiles& files = MadeUpFiles());

}  // namespace kvsim::test
