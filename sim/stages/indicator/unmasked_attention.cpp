#include <cmath>
#include <vector>

#include "sim/core/parallel.hpp"
#include "sim/stages/indicator/indicator.hpp"
#include "sim/stages/notes.hpp"

namespace kvsim::stages::indicator::unmasked_attention {
namespace {

/// Attention of a query to the whole prompt and nothing else, later entries included.
class UnmaskedRows : public StoredRows {
 public:
  UnmaskedRows(LayerWork& work, Range candidates) : StoredRows(candidates), work_(work) {}

  void start(const AttentionBlock& block) override {
    if (block.kv_head != kv_head_) keys_ = work_.keys(block.kv_head);
    kv_head_ = block.kv_head;
    const int64_t columns = keys_.rows(), count = block.heads * block.rows;
    const Table<float> queries = queries_of(block);
    SlotRows rows;
    rows.heads = block.heads;
    rows.rows = block.rows;
    rows.queries = queries.data();
    rows.segments = {{keys_.data(), nullptr, columns}};
    rows.sinks = sinks_from(work_.trace(), block.kv_head * block.heads);
    rows.attention = attention_.reserve(count * columns);
    work_.backend().attend(work_.trace(), {&rows, 1});
    double* const stored = stored_.reserve(count * candidates_.size());
    parallel_for(count, [&](int64_t index) {
      const float* const from = rows.attention + index * columns + candidates_.begin;
      double* const to = stored + index * candidates_.size();
      for (int64_t c = 0; c < candidates_.size(); ++c) to[c] = static_cast<double>(from[c]);
    });
  }

 private:
  /// [heads * rows][d] of a block.
  Table<float> queries_of(const AttentionBlock& block) const {
    const std::vector<int64_t> stored = stored_queries(work_, block.positions, true);
    Table<float> queries(block.heads * block.rows, keys_.columns());
    for (int x = 0; x < block.heads; ++x)
      for (int64_t r = 0; r < block.rows; ++r) {
        const int64_t query = stored[static_cast<size_t>(r)];
        work_.trace().q.read(block.kv_head * block.heads + x, query, query + 1,
                             queries.row(x * block.rows + r).data());
      }
    return queries;
  }

  LayerWork& work_;
  int kv_head_ = -1;
  Table<float> keys_;        // [n][d] of that KV head
  Buffer<float> attention_;  // [heads][rows][n]
};

class UnmaskedAttention : public RowIndicator {
 public:
  UnmaskedAttention()
      : RowIndicator({"indicator", "unmasked-attention",
                      "attention of the query to the whole prompt, entries after it included",
                      "Attention Matching repository"}) {}
  bool sees_all() const override { return true; }
  bool takes_probes() const override { return false; }
  double cost() const override { return 1; }
  std::unique_ptr<IndicatorRows> rows(LayerWork& work, const Settings&,
                                      const Segment& segment) const override {
    return std::make_unique<UnmaskedRows>(work, segment.candidates);
  }
};
const Register<Indicator, UnmaskedAttention> unmasked_attention;
const DeclareNote unmasked_attention_note(
    "indicator=unmasked-attention", "Attention Matching repository",
    "reference queries that come from the context itself see keys after them, too",
    "as coded, without any rotation");

}  // namespace
}  // namespace kvsim::stages::indicator::unmasked_attention
