#include "sim/stages/shape/blocks.hpp"

#include <algorithm>
#include <cmath>

#include "sim/stages/merge/merge.hpp"

namespace kvsim {
namespace keys {

const Declare block("block", "count >= 1 entries", "1",
                    "entries of a block, which stays or goes as a whole", always,
                    only_with(selects_entries_if), lets_nest, tested("2 4"));
const Declare block_score("block_score", "mean | max | root-mean-square", "mean",
                          "a block's score, of those of its entries", always,
                          only_with(selects_entries_if), lets_nest);

}  // namespace keys

namespace {

double score_of(BlockScore kind, std::span<const double> entries) {
  if (kind == BlockScore::max) return *std::ranges::max_element(entries);
  const bool squares = kind == BlockScore::root_mean_square;
  double sum = 0;
  for (const double s : entries) sum += squares ? s * s : s;
  sum /= static_cast<double>(entries.size());
  return squares ? std::sqrt(sum) : sum;
}

}  // namespace

Range block_of(const Settings& settings, int64_t entry, int64_t entries) {
  const int64_t size = settings.count(keys::block);
  const int64_t begin = entry / size * size;
  return {begin, std::min(begin + size, entries)};
}

void score_blocks(const Settings& settings, Range candidates, Table<double>& scores) {
  if (settings.count(keys::block) == 1) return;
  const auto kind = settings.word<BlockScore>(keys::block_score);
  for (int64_t owner = 0; owner < scores.rows(); ++owner)
    for (int64_t begin = candidates.begin; begin < candidates.end;) {
      const int64_t end = block_of(settings, begin, candidates.end).end;
      const auto own = scores.row(owner).subspan(static_cast<size_t>(begin),
                                                 static_cast<size_t>(end - begin));
      std::ranges::fill(own, score_of(kind, own));
      begin = end;
    }
}

}  // namespace kvsim
