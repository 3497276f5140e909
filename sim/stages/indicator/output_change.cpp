#include <algorithm>
#include <cmath>
#include <vector>

#include "sim/core/parallel.hpp"
#include "sim/stages/indicator/indicator.hpp"

namespace kvsim {
namespace {

constexpr int64_t kTile = 256;   // candidates whose projected values are held at a time

/// out[r] = sum_c factor[r][c0 + c] * x[c], r < factor.rows().
void project(const Table<double>& factor, int64_t c0, int64_t width, const double* x,
             double* out) {
  for (int64_t r = 0; r < factor.rows(); ++r) {
    const double* f = factor.row(r).data() + c0;
    double sum = 0;
    for (int64_t c = 0; c < width; ++c) sum += f[c] * x[c];
    out[r] = sum;
  }
}

/// The odds A/(1-A) times (z - v_i) for one head, query and entry, in projected coordinates. Where
/// an entry holds most of the attention, 1-A and z - v_i are both lost to rounding; there
/// (1-A)^-1 (z - v_i) = (mean of everything else) - v_i is taken from the other entries' own sum.
struct HeadRow {
  std::vector<double> output;     // F z
  int64_t heavy = -1;             // the entry with A >= 1/2, if any
  std::vector<double> rest;       // F (mean of everything else), for the heavy entry
  bool alone = false;             // nothing but the heavy entry is visible
};

/// Rows of ReST-KV Eq. 7, ||odds * (z - v_i) W^h||, for a head or summed inside the norm over the
/// heads that share the entry (joint).
class OutputChangeRows : public RowIndicator {
 public:
  OutputChangeRows(LayerWork& work, const Segment& segment, bool joint)
      : work_(work), candidates_(segment.candidates), joint_(joint) {}

  void start(const AttentionBlock& block) override {
    if (block.kv_head != kv_head_) load(block);
    const int units = joint_ ? 1 : block.heads;
    prepare(block);
    change_.assign(static_cast<size_t>(units * block.rows * candidates_.size()), 0.0);
    parallel_for((candidates_.size() + kTile - 1) / kTile, [&](int64_t tile) {
      const int64_t begin = candidates_.begin + tile * kTile;
      score_tile(block, {begin, std::min(candidates_.end, begin + kTile)});
    });
  }

  void row(const AttentionBlock& block, int head, int64_t row, Range candidates,
           std::span<double> out) const override {
    const double* from = change_.data() + (head * block.rows + row) * candidates.size();
    std::copy(from, from + candidates.size(), out.begin());
  }

 private:
  const Table<double>& factor(int head) const {
    return joint_ ? work_.group_output_factor(kv_head_)
                  : work_.output_factor(kv_head_ * work_.group_size() + head);
  }
  int64_t first_column(int head) const { return joint_ ? head * work_.value_dim() : 0; }

  void load(const AttentionBlock& block) {
    kv_head_ = block.kv_head;
    values_ = work_.values_ahead(kv_head_, block.columns);
    for (int head = 0; head < block.heads; ++head) factor(head);   // computed before any thread
  }

  void prepare(const AttentionBlock& block) {
    rows_.assign(static_cast<size_t>(block.heads * block.rows), {});
    parallel_for(block.heads * block.rows, [&](int64_t at) {
      const int head = static_cast<int>(at / block.rows);
      const int64_t row = at % block.rows;
      const int64_t dv = work_.value_dim();
      const float* z = block.outputs.data() + at * dv;
      HeadRow& own = rows_[static_cast<size_t>(at)];
      const std::vector<double> wide(z, z + dv);
      own.output.resize(static_cast<size_t>(factor(head).rows()));
      project(factor(head), first_column(head), dv, wide.data(), own.output.data());
      find_heavy(block, head, row, own);
    });
  }

  void find_heavy(const AttentionBlock& block, int head, int64_t row, HeadRow& own) const {
    const float* a = block.attention_row(head, row);
    const int64_t visible =
        std::min(block.columns, block.positions[static_cast<size_t>(row)] + 1);
    const float* top = std::max_element(a, a + visible);
    if (*top < 0.5f) return;
    own.heavy = top - a;
    const std::vector<float>& sinks = work_.trace().attention_sink;
    const int query_head = kv_head_ * block.heads + head;
    const float* logits = block.logit_row(head, row);
    const double sink =
        sinks.empty() ? -INFINITY : static_cast<double>(sinks[static_cast<size_t>(query_head)]);
    double shift = sink;
    for (int64_t i = 0; i < visible; ++i)
      if (i != own.heavy) shift = std::max(shift, static_cast<double>(logits[i]));
    own.alone = shift == -INFINITY;
    if (own.alone) return;
    double mass = std::exp(sink - shift);
    std::vector<double> mean(static_cast<size_t>(work_.value_dim()), 0.0);
    for (int64_t i = 0; i < visible; ++i) {
      if (i == own.heavy) continue;
      const double e = std::exp(static_cast<double>(logits[i]) - shift);
      const auto v = values_.row(i);
      mass += e;
      for (size_t c = 0; c < mean.size(); ++c) mean[c] += e * static_cast<double>(v[c]);
    }
    for (double& m : mean) m /= mass;
    own.rest.resize(own.output.size());
    project(factor(head), first_column(head), work_.value_dim(), mean.data(), own.rest.data());
  }

  void score_tile(const AttentionBlock& block, Range tile) {
    const int64_t dv = work_.value_dim();
    const int64_t width = factor(0).rows();
    Table<double> projected(tile.size() * (joint_ ? 1 : block.heads), joint_ ? block.heads * width
                                                                             : width);
    std::vector<double> wide(static_cast<size_t>(dv));
    for (int64_t i = tile.begin; i < tile.end; ++i) {
      const auto v = values_.row(i);
      std::copy(v.begin(), v.end(), wide.begin());
      for (int head = 0; head < block.heads; ++head)
        project(factor(head), first_column(head), dv, wide.data(),
                projected.data() + ((i - tile.begin) * block.heads + head) * width);
    }
    std::vector<double> sum(static_cast<size_t>(width));
    for (int64_t row = 0; row < block.rows; ++row)
      for (int64_t i = tile.begin; i < tile.end; ++i) {
        const double* values = projected.data() + (i - tile.begin) * block.heads * width;
        if (joint_) std::fill(sum.begin(), sum.end(), 0.0);
        for (int head = 0; head < block.heads; ++head) {
          if (!joint_) std::fill(sum.begin(), sum.end(), 0.0);
          const bool finite = add_change(block, head, row, i, values + head * width, sum);
          if (joint_ && head + 1 < block.heads && finite) continue;
          double squares = 0;
          for (double s : sum) squares += s * s;
          store(block, joint_ ? 0 : head, row, i) = finite ? std::sqrt(squares) : INFINITY;
          if (joint_ && !finite) break;
        }
      }
  }

  double& store(const AttentionBlock& block, int unit, int64_t row, int64_t i) {
    return change_[static_cast<size_t>((unit * block.rows + row) * candidates_.size() + i -
                                       candidates_.begin)];
  }

  /// sum += odds * F (z - v_i); false when the change is undefined.
  bool add_change(const AttentionBlock& block, int head, int64_t row, int64_t i,
                  const double* value, std::vector<double>& sum) const {
    if (i > block.positions[static_cast<size_t>(row)]) return true;
    const HeadRow& own = rows_[static_cast<size_t>(head * block.rows + row)];
    const double a = static_cast<double>(block.attention_row(head, row)[i]);
    if (i == own.heavy) {
      if (own.alone) return false;
      for (size_t c = 0; c < sum.size(); ++c) sum[c] += a * (own.rest[c] - value[c]);
    } else {
      const double odds = a / (1 - a);
      for (size_t c = 0; c < sum.size(); ++c) sum[c] += odds * (own.output[c] - value[c]);
    }
    return true;
  }

  LayerWork& work_;
  Range candidates_;
  bool joint_;
  int kv_head_ = -1;
  Table<float> values_;            // [columns][dv] of the KV head at work
  std::vector<HeadRow> rows_;      // [heads][rows] of the block at work
  std::vector<double> change_;     // [units][rows][candidates]
};

class OutputChangeKind : public Indicator {
 public:
  OutputChangeKind(KindInfo info, bool joint) : Indicator(std::move(info)), joint_(joint) {}
  Axes axes() const override { return joint_ ? Axes::group_row : Axes::head_row; }
  bool needs_outputs() const override { return true; }
  bool needs_logits() const override { return true; }
  std::unique_ptr<RowIndicator> rows(LayerWork& work, const Settings&,
                                     const Segment& segment) const override {
    return std::make_unique<OutputChangeRows>(work, segment, joint_);
  }

 private:
  bool joint_;
};

struct OutputChange : OutputChangeKind {
  OutputChange()
      : OutputChangeKind({"indicator", "output-change", "change of the head's output when the "
                          "entry alone is removed", "ReST-KV Eq. 7", {}}, false) {}
};
struct OutputChangeJoint : OutputChangeKind {
  OutputChangeJoint()
      : OutputChangeKind({"indicator", "output-change-joint", "change of the layer's output by all "
                          "heads that share the entry", "kvsim, after ReST-KV Eq. 7", {}}, true) {}
};
const Register<Indicator, OutputChange> output_change;
const Register<Indicator, OutputChangeJoint> output_change_joint;

}  // namespace
}  // namespace kvsim
