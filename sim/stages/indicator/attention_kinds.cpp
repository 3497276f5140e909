#include <Eigen/Core>

#include "sim/stages/indicator/indicator.hpp"
#include "sim/stages/stages.hpp"

namespace kvsim::stages::indicator::attention_kinds {

using Rows = std::unique_ptr<IndicatorRows>;

/// A_{h,j,i}, times a weight per query head (or KV head) and entry if there is one.
struct AttentionRows : IndicatorRows, SummedRows {
  AttentionRows() = default;
  explicit AttentionRows(const Table<float>& per_query_head) : weights_(&per_query_head) {}
  AttentionRows(const Table<float>& per_kv_head, int group_size)
      : weights_(&per_kv_head), per_kv_head_(true), group_size_(group_size) {}
  void row(const AttentionBlock& block, int head, int64_t row, Range candidates,
           std::span<double> out) const override {
    const float* a = block.attention_row(head, row) + candidates.begin;
    for (size_t c = 0; c < out.size(); ++c) out[c] = static_cast<double>(a[c]);
    if (!weights_) return;
    multiply(per_kv_head_ ? block.kv_head : block.kv_head * block.heads + head, candidates, out);
  }
  bool is_attention() const override { return weights_ == nullptr; }
  void scale(int query_head, Range candidates, std::span<double> out) const override {
    if (weights_) multiply(per_kv_head_ ? query_head / group_size_ : query_head, candidates, out);
  }

 private:
  void multiply(int64_t owner, Range candidates, std::span<double> out) const {
    const float* w = weights_->row(owner).data() + candidates.begin;
    for (size_t c = 0; c < out.size(); ++c) out[c] *= static_cast<double>(w[c]);
  }

  const Table<float>* weights_ = nullptr;
  bool per_kv_head_ = false;
  int group_size_ = 1;
};

struct Attention : RowIndicator, ScoresSlotRows {
  Attention() : RowIndicator({"attention", "softmax attention A", "SnapKV"}) {}
  Rows rows(LayerWork&, const Settings&, const Segment&) const override {
    return std::make_unique<AttentionRows>();
  }
  void slot_row(std::span<const double> a, std::span<double> out) const override {
    std::copy(a.begin(), a.end(), out.begin());
  }
};

/// Norms of v_i W^h in importance: L1, but oracles look for the importance that is measured.
const Table<float>& importance_weights(LayerWork& work, const Settings& settings) {
  return work.projected_norms(chosen<Queries>(settings).looks_ahead() ? work.measured_norm()
                                                                      : Norm::l1);
}

struct Importance : RowIndicator, ScoresSteps {
  Importance() : RowIndicator({"importance", "A * ||v_i W^h||_1", "DefensiveKV 3.1"}) {}
  Rows rows(LayerWork& work, const Settings& settings, const Segment&) const override {
    return std::make_unique<AttentionRows>(importance_weights(work, settings));
  }
};

struct AttentionValue : RowIndicator {
  AttentionValue() : RowIndicator({"attention-value", "A * ||v_i||_2", "ReST-KV Table 12"}) {}
  Rows rows(LayerWork& work, const Settings&, const Segment&) const override {
    return std::make_unique<AttentionRows>(work.value_norms(Norm::l2), work.group_size());
  }
};

/// -1 where an entry gets less than its even share of what the query sees, else 0.
struct BelowMeanRows : IndicatorRows, SummedRows {
  explicit BelowMeanRows(int64_t first_visible) : first_visible_(first_visible) {}
  void row(const AttentionBlock& block, int head, int64_t row, Range candidates,
           std::span<double> out) const override {
    const float* a = block.attention_row(head, row) + candidates.begin;
    const int64_t position = block.positions[row];
    const auto share = static_cast<float>(bound(position));
    for (int64_t c = 0; c < std::ssize(out); ++c) {
      const bool visible = candidates.begin + c <= position;
      out[c] = visible && a[c] < share ? -1 : 0;
    }
  }
  AttentionSum sum(std::span<const int64_t> positions, std::vector<double> weights) const override {
    AttentionSum below{AttentionSum::Of::below, std::move(weights), {}};
    for (double& weight : below.weights) weight = -weight;
    for (const int64_t position : positions) below.bounds.push_back(bound(position));
    return below;
  }

 private:
  /// Even share of what the query sees.
  double bound(int64_t position) const {
    return 1.0 / static_cast<double>(position + 1 - first_visible_);
  }

  int64_t first_visible_;  // 0, or the start of a segment that scores on its own
};

struct BelowMean : RowIndicator, ScoresSlotRows {
  BelowMean()
      : RowIndicator(
            {"below-mean", "-1 where A < 1/(number of visible entries), else 0", "Scissorhands"}) {}
  Rows rows(LayerWork&, const Settings&, const Segment& segment) const override {
    return std::make_unique<BelowMeanRows>(segment.range.begin);
  }
  void slot_row(std::span<const double> a, std::span<double> out) const override {
    const double share = 1.0 / static_cast<double>(a.size());
    for (size_t s = 0; s < out.size(); ++s) out[s] = a[s] < share ? -1 : 0;
  }
};

/// The largest logit of each head over J x candidates; fixed before any row is scored.
struct ExpLogitRows : IndicatorRows {
  explicit ExpLogitRows(std::vector<double> largest) : largest_(std::move(largest)) {}
  void row(const AttentionBlock& block, int head, int64_t row, Range candidates,
           std::span<double> out) const override {
    const float* logits = block.logit_row(head, row) + candidates.begin;
    const double largest = largest_[block.kv_head * block.heads + head];
    for (size_t c = 0; c < out.size(); ++c)
      out[c] = std::exp(static_cast<double>(logits[c]) - largest);
  }

 private:
  std::vector<double> largest_;  // [Hq]
};

struct ExpLogit : RowIndicator {
  ExpLogit()
      : RowIndicator({"exp-logit", "exp(logit - the head's largest over J x C)", "KeepKV code"},
                     {.logits = true, .probes = Probes::refused}) {}
  Rows rows(LayerWork& work, const Settings& settings, const Segment& segment) const override {
    std::vector<double> largest(work.query_heads(), -INFINITY);
    const bool ahead = chosen<Queries>(settings).looks_ahead();
    const AttentionPass pass{.positions = segment.positions, .look_ahead = ahead, .logits = true};
    for_each_attention_block(work, pass, [&](const AttentionBlock& block, int64_t) {
      for (int head = 0; head < block.heads; ++head)
        for (int64_t r = 0; r < block.rows; ++r) {
          const float* logits = block.logit_row(head, r);
          double& top = largest[block.kv_head * block.heads + head];
          for (int64_t i = segment.candidates.begin; i < segment.candidates.end; ++i)
            top = std::max(top, static_cast<double>(logits[i]));
        }
    });
    return std::make_unique<ExpLogitRows>(std::move(largest));
  }
};

/// Importance divided by the layer's total of the same query.
struct ShareRows : IndicatorRows, SummedRows {
  ShareRows(const Table<float>& weights, std::vector<int64_t> positions, std::vector<double> totals)
      : importance_(weights), positions_(std::move(positions)), totals_(std::move(totals)) {}
  void row(const AttentionBlock& block, int head, int64_t row, Range candidates,
           std::span<double> out) const override {
    importance_.row(block, head, row, candidates, out);
    const double total = total_of(block.positions[row]);
    for (double& x : out) x = total > 0 ? x / total : 0;
  }
  AttentionSum sum(std::span<const int64_t> positions, std::vector<double> weights) const override {
    for (size_t j = 0; j < weights.size(); ++j) {
      const double total = total_of(positions[j]);
      weights[j] *= total > 0 ? 1 / total : 0;
    }
    return importance_.sum(positions, std::move(weights));
  }
  void scale(int query_head, Range candidates, std::span<double> out) const override {
    importance_.scale(query_head, candidates, out);
  }

 private:
  double total_of(int64_t position) const {
    const auto j = std::lower_bound(positions_.begin(), positions_.end(), position);
    return totals_[j - positions_.begin()];
  }

  AttentionRows importance_;
  std::vector<int64_t> positions_;
  std::vector<double> totals_;  // [M] over all heads and candidates
};

struct ImportanceShare : RowIndicator {
  ImportanceShare()
      : RowIndicator({"importance-share", "importance / the layer's total of that query",
                      "kvsim; DefensiveKV 3.1"},
                     {.probes = Probes::refused}) {}
  Rows rows(LayerWork& work, const Settings& settings, const Segment& segment) const override {
    using Row = Eigen::Map<const Eigen::ArrayXf>;
    const Table<float>& weights = importance_weights(work, settings);
    std::vector<double> totals(segment.positions.size(), 0.0);
    const int64_t begin = segment.candidates.begin, count = segment.candidates.size();
    const bool ahead = chosen<Queries>(settings).looks_ahead();
    const AttentionPass pass{.positions = segment.positions, .look_ahead = ahead};
    for_each_attention_block(work, pass, [&](const AttentionBlock& block, int64_t first) {
      parallel_for(block.rows, [&](int64_t r) {
        for (int head = 0; head < block.heads; ++head) {
          const Row a(block.attention_row(head, r) + begin, count);
          const Row w(weights.row(block.kv_head * block.heads + head).data() + begin, count);
          totals[first + r] += (a.cast<double>() * w.cast<double>()).sum();
        }
      });
    });
    return std::make_unique<ShareRows>(weights, segment.positions, std::move(totals));
  }
};
const Register<Indicator, Attention, Importance, AttentionValue, BelowMean, ExpLogit,
               ImportanceShare>
    registered;

}  // namespace kvsim::stages::indicator::attention_kinds
