#include "analysis/formulas.hpp"
#include "analysis/measure.hpp"

namespace kvsim {
namespace {

/// Rows of importance of one KV head's group, [heads * rows][columns].
Table<float> importance_rows(const AttentionBlock& block, const float* importance, int64_t stride) {
  Table<float> rows(block.heads * block.rows, block.columns);
  for (int x = 0; x < block.heads; ++x) {
    const float* weight = importance + (block.kv_head * block.heads + x) * stride;
    for (int64_t r = 0; r < block.rows; ++r) {
      const float* attention = block.attention_row(x, r);
      const auto out = rows.row(x * block.rows + r);
      for (size_t i = 0; i < out.size(); ++i) out[i] = attention[i] * weight[i];
    }
  }
  return rows;
}

void add(std::span<const float> row, std::span<const uint32_t> entries, Moments& moments) {
  for (const uint32_t i : entries) {
    const auto value = static_cast<double>(row[i]);
    moments.sum += value;
    moments.squares += value * value;
  }
}

/// Walks one owner's chain over one row; adds the moments of the set at every boundary.
void walk(std::span<const float> row, const KeptChain& chain,
          const std::function<void(size_t, const Moments&)>& at_boundary) {
  Moments moments;
  int64_t begin = 0;
  for (size_t b = 0; b < chain.end.size(); ++b) {
    add(row, std::span(chain.order).subspan(begin, chain.end[b] - begin), moments);
    begin = chain.end[b];
    at_boundary(b, moments);
  }
}

/// Calls body(kv head, first step, rows, importance rows) for tiles of later steps.
void for_tiles(LayerWork& work, int64_t columns, const float* importance, int64_t stride,
               const std::function<void(int, int64_t, int64_t, const Table<float>&)>& body) {
  const AttentionPass pass{
      .positions = work.info().later_queries(), .look_ahead = true, .columns = columns};
  for_each_attention_block(work, pass, [&](const AttentionBlock& block, int64_t first_row) {
    body(block.kv_head, first_row, block.rows, importance_rows(block, importance, stride));
  });
}

}  // namespace

std::vector<std::vector<Moments>> set_moments(LayerWork& work, const std::vector<ReplayPlan>& plans,
                                              const float* importance, int64_t stride) {
  size_t sets = 0;
  for (const ReplayPlan& plan : plans) sets += static_cast<size_t>(plan.boundaries());
  std::vector<std::vector<Moments>> moments(sets, std::vector<Moments>(work.info().steps()));
  const int group = work.group_size();
  for_tiles(work, work.entries(), importance, stride,
            [&](int kv, int64_t t0, int64_t rows, const Table<float>& tile) {
    // One step per iteration: every sum belongs to one thread.
    parallel_for(rows, [&](int64_t r) {
      size_t first_set = 0;
      for (const ReplayPlan& plan : plans) {
        for (int x = 0; x < group; ++x) {
          const int owner = plan.per_query_head ? kv * group + x : kv;
          walk(tile.row(x * rows + r), plan.owners[owner],
               [&](size_t boundary, const Moments& part) {
            Moments& sum = moments[first_set + boundary][t0 + r];
            sum.sum += part.sum;
            sum.squares += part.squares;
          });
        }
        first_set += static_cast<size_t>(plan.boundaries());
      }
    });
  });
  return moments;
}

std::vector<Moments> later_moments(LayerWork& work, const float* importance, int64_t stride) {
  std::vector<Moments> moments(work.info().steps());
  for_tiles(work, work.info().total_len, importance, stride,
            [&](int, int64_t t0, int64_t rows, const Table<float>& tile) {
    for (int64_t row = 0; row < tile.rows(); ++row) {
      Moments& sum = moments[t0 + row % rows];
      for (const float value : tile.row(row).subspan(work.entries())) {
        sum.sum += static_cast<double>(value);
        sum.squares += static_cast<double>(value) * static_cast<double>(value);
      }
    }
  });
  return moments;
}

double importance_pearson(const Moments& all, const Moments& kept, double count) {
  // With y = x on kept entries and 0 elsewhere, sum(xy) = sum(y^2).
  const double xx = count * all.squares - all.sum * all.sum;
  const double yy = count * kept.squares - kept.sum * kept.sum;
  const double xy = count * kept.squares - all.sum * kept.sum;
  const bool equal = all.sum == kept.sum && all.squares == kept.squares;
  if (equal) return 1;
  if (xx <= 0 || yy <= 0) return 0;
  return std::clamp(xy / std::sqrt(xx * yy), -1.0, 1.0);
}

double importance_cosine(const Moments& all, const Moments& kept) {
  if (all.squares == kept.squares) return 1;
  return all.squares == 0 ? 0 : std::min(1.0, std::sqrt(kept.squares / all.squares));
}

}  // namespace kvsim

namespace kvsim::measures::importance_correlation {
namespace {

const DeclareMeasure measure(
    {.name = "importance_correlation", .place = 501},
    {{"importance_pearson", kOverSteps, "1", "correlation with the full cache",
      "Pearson of I and I * [kept] over all heads and entries that could be dropped"},
     {"importance_cosine", kOverSteps, "1", "cosine with the full cache",
      "sqrt(sum of squares kept / sum of squares)"}});

/// Replay plan of one set: every entry, for every KV head.
ReplayPlan everything(const LayerWork& work) {
  KeptChain chain;
  for (int64_t i = 0; i < work.entries(); ++i) chain.order.push_back(static_cast<uint32_t>(i));
  chain.end = {work.entries()};
  ReplayPlan plan;
  plan.masses_only = true;
  plan.owners.assign(work.kv_heads(), chain);
  return plan;
}

/// Moments of the importance, [T] each; without `all`, only what was kept is known.
struct SeenMoments {
  std::vector<Moments> kept, all;
  std::vector<double> pairs;  ///< of query head and entry in the scope
};

/// Moments of importance for each outcome of a layer's prefill replay, in the scope of the run.
class LayerMoments {
 public:
  LayerMoments(LayerWork& work, const PrefillReplay& replay, Scope scope)
      : work_(work), replay_(replay), scope_(scope) {
    std::vector<ReplayPlan> plans = replay.plans().plans;
    plans.push_back(everything(work));
    const Table<float>& importance = replay.importance();
    sets_ = set_moments(work, plans, importance.data(), importance.columns());
    if (scope == Scope::all) later_ = later_moments(work, importance.data(), importance.columns());
  }

  /// `kept`: when it was seen in the replay, since no set of a plan stands for it.
  SeenMoments of(const ReplayOutcome& outcome, std::vector<Moments> seen = {}) const {
    SeenMoments moments;
    moments.all = with_later(of_handle(outcome.total_handle));
    if (seen.empty()) {
      moments.kept = with_later(of_handle(outcome.share_handle));
    } else {
      moments.kept = std::move(seen);
      for (size_t t = 0; t < later_.size(); ++t)
        moments.kept[t].squares += later_[t].squares;  // the sum has them already
    }
    moments.pairs = pairs(outcome);
    return moments;
  }

 private:
  std::vector<double> pairs(const ReplayOutcome& outcome) const {
    const TraceInfo& info = work_.info();
    std::vector<double> counts(info.steps(),
                               static_cast<double>(work_.query_heads() * work_.entries()));
    if (scope_ == Scope::evictable && outcome.total_handle >= 0) {
      double guarded = 0;
      for (const auto& owner : outcome.kept->guarded) guarded += static_cast<double>(owner.size());
      const int heads = outcome.kept->per_query_head ? 1 : work_.group_size();
      for (double& count : counts) count -= guarded * heads;
    }
    if (scope_ == Scope::all)
      for (size_t t = 0; t < counts.size(); ++t) {
        const int64_t position = info.later_queries()[t];
        counts[t] = static_cast<double>(work_.query_heads()) * static_cast<double>(position + 1);
      }
    return counts;
  }
  const std::vector<Moments>& of_handle(int handle) const {
    const int set = handle < 0 ? PlanBuilder::Plans::kEverything : replay_.plans().set[handle];
    return set < 0 ? sets_.back() : sets_[set];
  }
  std::vector<Moments> with_later(std::vector<Moments> moments) const {
    for (size_t t = 0; t < later_.size(); ++t) {
      moments[t].sum += later_[t].sum;
      moments[t].squares += later_[t].squares;
    }
    return moments;
  }

  LayerWork& work_;
  const PrefillReplay& replay_;
  Scope scope_;
  std::vector<std::vector<Moments>> sets_;  ///< [set][T]; the last is the whole prompt
  std::vector<Moments> later_;              ///< [T], scope all only
};

struct ImportanceCorrelation : Measure {
  using Measure::Measure;

  MeasureNeeds needs() const override { return {.epochs = true}; }
  void start(const MeasuredLayer& layer) override { seen_.assign(layer.replay.count(), {}); }
  void see(const StepBlock& block, const OutcomeBlock& view) override {
    if (view.sums == nullptr || view.sums->kept.squares.empty()) return;
    SeenMoments& seen = seen_[view.outcome];
    fill(seen.kept, block.first_step, view.sums->kept.importance, view.sums->kept.squares);
    if (view.sums->total.squares.empty()) return;
    fill(seen.all, block.first_step, view.sums->total.importance, view.sums->total.squares);
    seen.pairs.resize(run().info.steps());
    std::ranges::copy(view.sums->entries, seen.pairs.begin() + block.first_step);
  }
  void finish(const MeasuredLayer& layer, MeasureResults& results) override {
    const LayerMoments moments(layer.work, layer.replay.prefill(), run().options.scope);
    layer.for_each_cell([&](ReplayCell cell, size_t o) {
      const ReplayOutcome& outcome = layer.replay.outcome(o);
      const bool decoded = !seen_[o].all.empty();
      const bool prefill = o < layer.replay.prefill().outcomes().size();
      if (!outcome.shares_defined || (!decoded && !prefill)) return;
      write(cell, layer.index, 0, decoded ? seen_[o] : moments.of(outcome, seen_[o].kept), results);
    });
  }
  /// Does it for one stretch of a periodic record, whose prompt is longer.
  void see_epoch(const MeasuredEpoch& epoch, MeasureResults& results) override {
    const LayerMoments moments(epoch.prompt, epoch.replay, run().options.scope);
    for (const ReplayOutcome& outcome : epoch.replay.outcomes()) {
      if (!outcome.shares_defined) continue;
      for (const ReplayCell cell : outcome.cells)
        write({epoch.record, cell.budget}, epoch.index, epoch.first_step, moments.of(outcome),
              results);
    }
  }

 private:
  void fill(std::vector<Moments>& moments, int64_t first, const Table<double>& sums,
            const Table<double>& squares) const {
    moments.resize(run().info.steps());
    const std::vector<double> sum = over_heads(sums), square = over_heads(squares);
    for (size_t s = 0; s < sum.size(); ++s)
      moments[static_cast<size_t>(first) + s] = {sum[s], square[s]};
  }
  static void write(ReplayCell cell, int64_t layer, int64_t first, const SeenMoments& moments,
                    MeasureResults& results) {
    std::vector<double> pearson, cosine;
    for (size_t t = 0; t < moments.all.size(); ++t) {
      pearson.push_back(
          kvsim::importance_pearson(moments.all[t], moments.kept[t], moments.pairs[t]));
      cosine.push_back(kvsim::importance_cosine(moments.all[t], moments.kept[t]));
    }
    results.copy("importance_pearson", {cell.record, cell.budget, layer}, pearson, first);
    results.copy("importance_cosine", {cell.record, cell.budget, layer}, cosine, first);
  }

  std::vector<SeenMoments> seen_;  ///< [outcome] of those that are chosen per step or decode
};
const RegisterMeasure<ImportanceCorrelation> registered(measure);

}  // namespace
}  // namespace kvsim::measures::importance_correlation
