#include "sim/replay/first_estimates.hpp"

#include <algorithm>
#include <numeric>

namespace kvsim {
namespace {

/// Estimates from the last prompt queries. Logits are linear in the key here (no softcap).
std::unique_ptr<Estimates> first_estimates(const LayerWork& work, const SlotCache& cache,
                                           const Settings& settings, int64_t budget) {
  const int64_t n = cache.size();
  const EstimateLines lines = chosen<Merge>(settings).estimates();
  const bool per_head = lines == EstimateLines::every_head;
  const int count = per_head ? cache.heads() : 1;
  const auto& kind = chosen<ScoreEstimate>(settings);
  const int64_t rows = std::min(kind.rows(settings, budget), n);
  auto estimates = kind.start(settings, budget, count, n);
  const int64_t end =
      work.info().first_step();  // stored queries n-rows..n-1 are the last before it
  Table<float> queries(count * rows, cache.key_dim()), logits(count * rows, n);
  std::vector<int64_t> seen(static_cast<size_t>(rows));
  std::iota(seen.begin(), seen.end(), n - rows + 1);
  for (int line = 0; line < count; ++line)
    std::ranges::copy(
        per_head
            ? mean_queries(work.trace(), cache.first_head() + line, 1, end - rows, end).values()
            : mean_queries(work.trace(), cache.first_head(), cache.heads(), end - rows, end)
                  .values(),
        queries.row(line * rows).data());
  SlotRows all;
  all.heads = count;
  all.rows = rows;
  all.queries = queries.data();
  all.segments = {{cache.keys(), cache.values(), n, nullptr}};
  all.seen = seen.data();
  all.logits = logits.data();
  work.backend().attend(work.trace(), {&all, 1});
  for (int line = 0; line < count; ++line)
    for (int64_t r = 0; r < rows; ++r) {
      const auto row = logits.row(line * rows + r);
      estimates->see(line, std::vector<double>(row.begin(), row.end()));
    }
  return estimates;
}

}  // namespace

void FirstEstimates::prepare(const KeptSets& kept, const Settings& settings) {
  const int64_t rows = chosen<ScoreEstimate>(settings).rows(settings, kept.budget);
  if (settings_ == &settings && rows_ == rows && owners_.size() == kept.owners.size()) return;
  settings_ = &settings;
  rows_ = rows;
  budget_ = kept.budget;
  owners_.clear();
  owners_.resize(kept.owners.size());
}

std::unique_ptr<Estimates> FirstEstimates::of(const LayerWork& work, const SlotCache& cache) {
  std::unique_ptr<Estimates>& made = owners_[static_cast<size_t>(cache.owner())];
  if (made == nullptr) made = first_estimates(work, cache, *settings_, budget_);
  return made->copy();
}

}  // namespace kvsim
