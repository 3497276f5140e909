#include "analysis/formulas.hpp"
#include "analysis/measure.hpp"
#include "analysis/statistics.hpp"

namespace kvsim {
namespace {

constexpr int kRounds = 64;
constexpr double kRate = 4;

/// Adds the share of one owner's best `budget` entries under the weights mu to rho[t].
void add_best_set(const Table<float>& gain, std::span<const double> mu, int64_t budget,
                  std::span<double> rho) {
  const int64_t entries = gain.columns();
  std::vector<double> score(entries);
  for (int64_t t = 0; t < gain.rows(); ++t) {
    const auto row = gain.row(t);
    const double weight = mu[t];
    for (size_t i = 0; i < score.size(); ++i) score[i] += weight * static_cast<double>(row[i]);
  }
  auto order = ascending<uint32_t>(std::ssize(score));
  const auto best = order.begin() + std::min(budget, entries);
  std::nth_element(order.begin(), best, order.end(), best_first(score));
  std::sort(order.begin(), best);
  for (int64_t t = 0; t < gain.rows(); ++t) {
    const auto row = gain.row(t);
    double sum = 0;
    for (auto i = order.begin(); i != best; ++i) sum += static_cast<double>(row[*i]);
    rho[t] += sum;
  }
}

}  // namespace

double minmax_bound(const ImportanceGains& gains, int64_t budget) {
  const size_t steps = gains.base.size();
  std::vector<double> mu(steps, 1 / static_cast<double>(steps));
  double bound = std::numeric_limits<double>::infinity();
  Table<double> shares(std::ssize(gains.owners), static_cast<int64_t>(steps));
  for (int round = 0; round < kRounds; ++round) {
    parallel_for(shares.rows(), [&](int64_t owner) {
      const auto share = shares.row(owner);
      std::fill(share.begin(), share.end(), 0.0);
      add_best_set(gains.owners[owner], mu, budget, share);
    });
    double value = 0;
    double sum = 0;
    for (size_t t = 0; t < steps; ++t) {
      double rho = gains.base[t];
      for (int64_t owner = 0; owner < shares.rows(); ++owner)
        rho += shares(owner, static_cast<int64_t>(t));
      value += mu[t] * rho;
      mu[t] *= std::exp(-kRate * rho);
      sum += mu[t];
    }
    for (double& weight : mu) weight /= sum;
    bound = std::min(bound, value);
  }
  return bound;
}

}  // namespace kvsim

namespace kvsim::measures::regret {
namespace {

constexpr const char* kBestStatic = "oracle-mean";
constexpr const char* kBestPerStep = "oracle-step";

struct Regret : Measure {
  using Measure::Measure;

  void start(const MeasuredLayer& layer) override {
    importance_ = series(static_cast<int64_t>(layer.replay.count()));
  }
  void see(const StepBlock& block, const OutcomeBlock& view) override {
    if (view.sums == nullptr) return;
    retained_pooled(view.sums->kept.importance, view.sums->total.importance,
                    importance_.row(view.outcome).subspan(block.first_step, block.steps));
  }
  void finish(const MeasuredLayer& layer, MeasureResults& results) override {
    std::map<int, size_t> best_static, best_per_step;  // outcomes by budget
    if (results.has("regret_mean")) best_static = layer.outcomes_of(best_static_);
    if (results.has("regret_step")) best_per_step = layer.outcomes_of(best_per_step_);
    layer.for_each_cell([&](ReplayCell cell, size_t o) {
      const std::initializer_list<int64_t> at = {cell.record, cell.budget, layer.index};
      if (results.has("regret_mean")) {
        const size_t best = best_static.at(cell.budget);
        results.set("regret_mean", at, mean(importance_.row(best)) - mean(importance_.row(o)));
      }
      if (!results.has("regret_step")) return;
      const auto best = importance_.row(best_per_step.at(cell.budget)), own = importance_.row(o);
      std::vector<double> regret(own.size());
      std::ranges::transform(best, own, regret.begin(), std::minus<>());
      results.copy("regret_step", at, regret);
    });
  }

 private:
  const Record best_static_ = Record::parse(kBestStatic);
  const Record best_per_step_ = Record::parse(kBestPerStep);
  Table<double> importance_;  ///< retained, of every outcome
};
const RegisterMeasure<Regret> register_regret(
    {.name = "regret", .place = 502},
    {{"regret_mean", "policy budget layer", "1", "regret against the best static choice",
      "retained_importance_mean of oracle-mean minus the policy's", Beside{kBestStatic}},
     {"regret_step", "policy budget layer step", "1", "regret against the best choice of each step",
      "retained_importance of oracle-step minus the policy's", Beside{kBestPerStep}}});

/// The bound belongs to a budget and to who owns a set (KV heads or query heads), not to a policy.
/// It is about static sets of the prompt: what periodic or decoding records keep has none.
struct MinmaxBound : Measure {
  using Measure::Measure;

  void start(const MeasuredLayer& /*layer*/) override {
    total_.clear();
    later_share_.clear();
  }
  void see_full(const ReplayBlock& block) override {
    const std::vector<double> prompt = over_heads(block.prompt_importance);
    const std::vector<double> later = over_heads(block.later_importance);
    for (size_t s = 0; s < prompt.size(); ++s) {
      const double counted = run().options.scope == Scope::all ? later[s] : 0.0;
      total_.push_back(prompt[s] + counted);
      later_share_.push_back(counted == 0 ? 0.0 : counted / total_.back());
    }
  }
  void finish(const MeasuredLayer& layer, MeasureResults& results) override {
    const Table<float>& importance = layer.replay.prefill().importance();
    for (const bool per_query_head : {false, true}) {
      const std::vector<ReplayCell> cells = static_cells(layer, per_query_head);
      if (cells.empty()) continue;
      const ImportanceGains gains = gains_of(layer.work, importance, per_query_head);
      const std::vector<Budget>& budgets = run().options.budgets;
      for (size_t b = 0; b < budgets.size(); ++b) {
        const double bound = kvsim::minmax_bound(gains, budgets[b].entries(layer.work.entries()));
        for (const ReplayCell cell : cells)
          if (cell.budget == static_cast<int>(b))
            results.set("minmax_bound", {cell.record, cell.budget, layer.index}, bound);
      }
    }
  }

 private:
  static std::vector<ReplayCell> static_cells(const MeasuredLayer& layer, bool per_query_head) {
    std::vector<ReplayCell> cells;
    for (const ReplayOutcome& outcome : layer.replay.prefill().outcomes()) {
      if (outcome.kept->per_query_head != per_query_head || !outcome.shares_defined) continue;
      std::ranges::copy_if(outcome.cells, std::back_inserter(cells), [&](ReplayCell cell) {
        return cell.record < static_cast<int>(layer.shown);
      });
    }
    return cells;
  }

  ImportanceGains gains_of(LayerWork& work, const Table<float>& importance,
                           bool per_query_head) const {
    ImportanceGains gains;
    gains.base = later_share_;
    gains.owners.assign(per_query_head ? work.query_heads() : work.kv_heads(),
                        Table<float>(std::ssize(total_), work.entries()));
    const AttentionPass pass{.positions = work.info().later_queries(), .look_ahead = true};
    for_each_attention_block(work, pass, [&](const AttentionBlock& block, int64_t first_row) {
      for (int x = 0; x < block.heads; ++x) {
        const int head = block.kv_head * block.heads + x;
        Table<float>& gain = gains.owners[per_query_head ? head : block.kv_head];
        const auto weight = importance.row(head);
        for (int64_t r = 0; r < block.rows; ++r) {
          const double z = total_[first_row + r];
          const float* attention = block.attention_row(x, r);
          const auto out = gain.row(first_row + r);
          for (size_t i = 0; z != 0 && i < out.size(); ++i) {
            const double share = static_cast<double>(attention[i]) * static_cast<double>(weight[i]);
            out[i] += static_cast<float>(share / z);
          }
        }
      }
    });
    return gains;
  }

  std::vector<double> total_;        ///< [T] importance of all entries in the scope prompt or all
  std::vector<double> later_share_;  ///< [T] share of it on later entries; 0 in scope prompt
};
const RegisterMeasure<MinmaxBound> register_minmax_bound(
    {.name = "minmax_bound", .place = 503},
    {{"minmax_bound", "policy budget layer", "1", "upper bound of the worst retained importance",
      "no static choice of B entries per head is better than this at its worst "
      "step; NaN for `periodic` and `decode`, which do not choose once"}});

}  // namespace
}  // namespace kvsim::measures::regret
