#include <algorithm>
#include <limits>

#include "sim/core/parallel.hpp"
#include "sim/stages/indicator/indicator.hpp"
#include "sim/stages/notes.hpp"
#include "sim/stages/shape/blocks.hpp"

namespace kvsim::stages::indicator::page_bound {
namespace {

/// The least and the largest number of each channel among the keys of a page.
class Pages : public StepScorer {
 public:
  Pages(const LayerWork& work, const Settings& settings)
      : keys_(work.trace().k), entries_(work.entries()), size_(settings.count(keys::block)),
        least_((entries_ + size_ - 1) / size_, keys_.dim(2)), largest_(least_) {}

  void start(int kv_head) override {
    parallel_for(least_.rows(), [&](int64_t page) {
      const int64_t begin = page * size_, end = std::min(begin + size_, entries_);
      Table<float> own(end - begin, keys_.dim(2));
      keys_.read(kv_head, begin, end, own.data());
      std::ranges::copy(own.row(0), least_.row(page).begin());
      std::ranges::copy(own.row(0), largest_.row(page).begin());
      for (int64_t r = 1; r < own.rows(); ++r)
        for (int64_t c = 0; c < own.columns(); ++c) {
          least_(page, c) = std::min(least_(page, c), own(r, c));
          largest_(page, c) = std::max(largest_(page, c), own(r, c));
        }
    });
  }

  void score(const Table<float>& queries, std::span<double> out) const override {
    for (int64_t page = 0; page < least_.rows(); ++page) {
      double bound = 0;
      for (int64_t h = 0; h < queries.rows(); ++h)
        for (int64_t c = 0; c < queries.columns(); ++c) {
          const auto q = static_cast<double>(queries(h, c));
          bound += q * static_cast<double>(q > 0 ? largest_(page, c) : least_(page, c));
        }
      for (int64_t i = page * size_; i < std::min((page + 1) * size_, entries_); ++i)
        out[static_cast<size_t>(i)] = bound;
    }
  }

 private:
  const Tensor& keys_;
  int64_t entries_, size_;
  Table<float> least_, largest_;  ///< [pages][d] of the KV head at work
};

class PageBound : public Indicator {
 public:
  PageBound()
      : Indicator({"indicator",
                   "page-bound",
                   "the most that q.k can be for a key of the entry's block",
                   "Quest",
                   {},
                   "",
                   "a step's own query scores (tests/sim/replay/test_per_step.cpp)",
                   "queries=none,schedule=reads"}) {}
  Axes axes() const override { return Axes::entry; }
  bool only_scores_steps() const override { return true; }
  bool at_each_step() const override { return true; }
  std::unique_ptr<StepScorer> step_scorer(const LayerWork& work,
                                          const Settings& settings) const override {
    return std::make_unique<Pages>(work, settings);
  }
  /// Nothing is known of an entry before a step asks.
  Table<double> entries(const EntryRequest& request) const override {
    return {request.owners(), request.work.entries()};
  }
  double bytes_per_slot(const Settings& settings, int64_t key_dim,
                        int64_t element_bytes) const override {
    const int64_t size = settings.count(keys::block);
    return size == 1 ? 0
                     : static_cast<double>(2 * key_dim * element_bytes) / static_cast<double>(size);
  }
};
const Register<Indicator, PageBound> registered;
const DeclareNote note{{.of = "indicator=page-bound",
                        .source = "Quest",
                        .point = "query heads that share keys; the pages of later tokens",
                        .reading = "with granularity=kv bounds are summed over the group; later "
                                   "tokens are always read"}};

}  // namespace
}  // namespace kvsim::stages::indicator::page_bound
