#include <deque>

#include "analysis/formulas.hpp"
#include "analysis/measure.hpp"
#include "analysis/statistics.hpp"

namespace kvsim {
namespace {

constexpr int kMantissaBits = 10;
constexpr int kShift = 52 - kMantissaBits;
constexpr int64_t kLowest = int64_t{1023 - 40} << kMantissaBits;  // the bits of 2^-40
constexpr int64_t kHighest = int64_t{1023 + 60} << kMantissaBits;

/// Bits of a value >= 0 are in the order of the values.
size_t bin_of(double value) {
  const auto bits = static_cast<int64_t>(std::bit_cast<uint64_t>(value) >> kShift);
  return static_cast<size_t>(std::clamp(bits, kLowest, kHighest) - kLowest);
}

constexpr double kTrimmed = 0.1;
constexpr double kLargestChange = 300;  // nats from the first row; beyond, scores are clipped

/// Kinds of predictors. A sum of rows over the sum of their weights: S <- keep S + add s, as moving
/// averages are (KeepKV Eq. 8); or the mean of the newest rows.
struct PredictorKind {
  const char* name;
  double keep, add;
  size_t newest = 0;  ///< rows; 0: a sum
};
constexpr PredictorKind kPredictors[] = {{"ema 0.5", 0.5, 1 - 0.5},    {"ema 0.8", 0.8, 1 - 0.8},
                                         {"ema 0.9", 0.9, 1 - 0.9},    {"ema 0.95", 0.95, 1 - 0.95},
                                         {"ema 0.99", 0.99, 1 - 0.99}, {"cumulative", 1, 1},
                                         {"sliding", 0, 0, 32},        {"last", 0, 1}};

/// Predicts the scores of the entries of one head from the rows seen so far.
class Predictor {
 public:
  explicit Predictor(const PredictorKind& kind) : kind_(kind) {}

  void see(std::span<const double> row) {
    if (kind_.newest > 0) {
      rows_.emplace_back(row.begin(), row.end());
      if (rows_.size() > kind_.newest) rows_.pop_front();
      return;
    }
    sum_.resize(row.size(), 0.0);
    for (size_t i = 0; i < row.size(); ++i) sum_[i] = kind_.keep * sum_[i] + kind_.add * row[i];
    weight_ = kind_.keep * weight_ + kind_.add;
  }
  std::vector<double> prediction() const {
    std::vector<double> mean = sum_;
    double weight = weight_;
    if (kind_.newest > 0) {
      mean.assign(rows_.front().size(), 0.0);
      for (const auto& row : rows_)
        for (size_t i = 0; i < mean.size(); ++i) mean[i] += row[i];
      weight = static_cast<double>(rows_.size());
    }
    for (double& x : mean) x /= weight;
    return mean;
  }

 private:
  PredictorKind kind_;
  double weight_ = 0;
  std::vector<double> sum_;
  std::deque<std::vector<double>> rows_;
};

/// Rows of one KV head's query group: scores relative to each entry's at the first row.
struct ScoreRows {
  int64_t heads = 0, rows = 0, columns = 0;
  std::vector<double> score;   ///< [heads][rows][columns] exp(logit), relative
  std::vector<double> shrink;  ///< [heads][rows] what makes attention of it, relative
  const AttentionBlock* block = nullptr;

  std::span<const double> row(int64_t head, int64_t r) const {
    return {score.data() + (head * rows + r) * columns, static_cast<size_t>(columns)};
  }
};

/// One predictor of one score over all heads and steps.
class Judge {
 public:
  Judge(const TraceInfo& info, const PredictorKind& kind, bool of_attention, int64_t horizon)
      : info_(info), kind_(kind), of_attention_(of_attention), horizon_(horizon) {}

  void start(int64_t heads) { heads_.assign(heads, {Predictor(kind_), {}}); }
  void see(const ScoreRows& rows) {
    std::vector<double> now(rows.columns);
    for (int64_t x = 0; x < rows.heads; ++x)
      for (int64_t r = 0; r < rows.rows; ++r) {
        const auto scores = rows.row(x, r);
        const double factor = of_attention_ ? rows.shrink[x * rows.rows + r] : 1.0;
        for (size_t i = 0; i < now.size(); ++i) now[i] = scores[i] * factor;
        step(heads_[x], rows.block->positions[r], now,
             rows.block->attention_row(static_cast<int>(x), r));
      }
  }
  PredictionError result() const {
    return {errors_.percentile(50), errors_.trimmed_mean(kTrimmed),
            weight_ > 0 ? weighted_ / weight_ : kUndefined};
  }

 private:
  struct Waiting {
    int64_t position = 0;  ///< of the row that is predicted
    std::vector<double> prediction;
  };
  struct Head {
    Predictor predictor;
    std::deque<Waiting> waiting;
  };

  void step(Head& head, int64_t position, std::span<const double> now, const float* attention) {
    while (!head.waiting.empty() && head.waiting.front().position == position) {
      const std::vector<double>& prediction = head.waiting.front().prediction;
      for (size_t i = 0; i < now.size(); ++i) {
        const double error = std::fabs(prediction[i] / now[i] - 1);
        errors_.add(error);
        weighted_ += static_cast<double>(attention[i]) * error;
        weight_ += static_cast<double>(attention[i]);
      }
      head.waiting.pop_front();
    }
    head.predictor.see(now);
    if (std::ranges::binary_search(info_.query_position, position + horizon_))
      head.waiting.push_back({position + horizon_, head.predictor.prediction()});
  }

  const TraceInfo& info_;
  const PredictorKind& kind_;
  bool of_attention_;
  int64_t horizon_;
  std::vector<Head> heads_;  // of the KV head at work
  FineHistogram errors_;
  double weighted_ = 0;
  double weight_ = 0;
};

/// Turns logits into scores relative to each entry's first one, so that nothing overflows.
class Relative {
 public:
  void start(const AttentionBlock& block) {
    first_.assign(block.logits.size() / static_cast<size_t>(block.rows), 0.0);
    first_sum_.assign(block.heads, 0.0);
    for (int x = 0; x < block.heads; ++x) {
      first_sum_[x] = block.log_sum_exp[x * block.rows];
      std::copy_n(block.logit_row(x, 0), block.columns, first_.begin() + x * block.columns);
    }
  }
  ScoreRows rows(const AttentionBlock& block) const {
    ScoreRows rows;
    rows.heads = block.heads;
    rows.rows = block.rows;
    rows.columns = block.columns;
    rows.block = &block;
    rows.score.resize(block.logits.size());
    rows.shrink.resize(block.log_sum_exp.size());
    const auto change = [](double nats) {
      return std::exp(std::clamp(nats, -kLargestChange, kLargestChange));
    };
    parallel_for(block.heads * block.rows, [&](int64_t row) {
      const int64_t x = row / block.rows;
      rows.shrink[row] = change(first_sum_[x] - block.log_sum_exp[row]);
      const double* first = first_.data() + x * block.columns;
      for (int64_t i = 0; i < block.columns; ++i) {
        const auto at = static_cast<size_t>(row * block.columns + i);
        rows.score[at] = change(static_cast<double>(block.logits[at]) - first[i]);
      }
    });
    return rows;
  }

 private:
  std::vector<double> first_;      // [heads][columns] logits
  std::vector<double> first_sum_;  // [heads] log-sum-exp
};

}  // namespace

FineHistogram::FineHistogram()
    : counts_(static_cast<size_t>(kHighest - kLowest) + 1), sums_(counts_.size(), 0.0) {}

void FineHistogram::add(double value) {
  const size_t bin = bin_of(value);
  ++counts_[bin];
  sums_[bin] += value;
  ++count_;
}

double FineHistogram::at_rank(int64_t rank) const {
  size_t bin = 0;
  for (int64_t below = counts_[0]; below <= rank; below += counts_[++bin]) {
  }
  return sums_[bin] / static_cast<double>(counts_[bin]);
}

double FineHistogram::percentile(double p) const {
  if (count_ == 0) return kUndefined;
  const double rank = p / 100 * static_cast<double>(count_ - 1);
  const double low = at_rank(static_cast<int64_t>(std::floor(rank)));
  const double high = at_rank(static_cast<int64_t>(std::ceil(rank)));
  return low + (rank - std::floor(rank)) * (high - low);
}

double FineHistogram::trimmed_mean(double share) const {
  const auto cut = static_cast<int64_t>(std::floor(static_cast<double>(count_) * share));
  const int64_t left = count_ - 2 * cut;
  if (left <= 0) return kUndefined;
  double sum = 0;
  int64_t below = 0;
  for (size_t bin = 0; bin < counts_.size(); ++bin) {
    const int64_t in_bin = counts_[bin];
    if (in_bin == 0) continue;
    const int64_t taken = std::min(below + in_bin, count_ - cut) - std::max(below, cut);
    if (taken > 0) sum += sums_[bin] * static_cast<double>(taken) / static_cast<double>(in_bin);
    below += in_bin;
  }
  return sum / static_cast<double>(left);
}

const std::vector<std::string>& predicted_scores() {
  static const std::vector<std::string> names = {"exp-logit", "attention"};
  return names;
}

const std::vector<std::string>& score_predictors() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (const PredictorKind& kind : kPredictors) all.emplace_back(kind.name);
    return all;
  }();
  return names;
}

std::vector<PredictionError> prediction_errors(LayerWork& work, int64_t horizon) {
  const TraceInfo& info = work.info();
  std::vector<Judge> judges;
  for (size_t score = 0; score < predicted_scores().size(); ++score)
    for (const PredictorKind& kind : kPredictors)
      judges.emplace_back(info, kind, score == 1, horizon);
  // What really came is compared, nothing is decided by it.
  const AttentionPass pass{.positions = info.later_queries(), .look_ahead = true, .logits = true};
  Relative relative;
  for_each_attention_block(work, pass, [&](const AttentionBlock& block, int64_t first_row) {
    if (first_row == 0) {
      relative.start(block);
      for (Judge& judge : judges) judge.start(block.heads);
    }
    const ScoreRows rows = relative.rows(block);
    parallel_for(std::ssize(judges), [&](int64_t j) { judges[j].see(rows); });
  });
  std::vector<PredictionError> errors;
  for (const Judge& judge : judges) errors.push_back(judge.result());
  return errors;
}

}  // namespace kvsim

namespace kvsim::measures::prediction_error {
namespace {

VariableValues scores(const RunShape& /*run*/) { return predicted_scores(); }
VariableValues predictors(const RunShape& /*run*/) { return score_predictors(); }

constexpr const char* kPrediction = "layer score predictor";
struct PredictionErrors : Measure {
  using Measure::Measure;

  void finish(const MeasuredLayer& layer, MeasureResults& results) override {
    const auto errors = prediction_errors(layer.work, run().options.horizon);
    const size_t count = score_predictors().size();
    for (size_t x = 0; x < errors.size(); ++x) {
      const std::initializer_list<int64_t> at = {layer.index, static_cast<int64_t>(x / count),
                                                 static_cast<int64_t>(x % count)};
      results.set("prediction_error_median", at, errors[x].median);
      results.set("prediction_error_trimmed_mean", at, errors[x].trimmed_mean);
      results.set("prediction_error_weighted_mean", at, errors[x].weighted_mean);
    }
  }
};
const RegisterMeasure<PredictionErrors> register_prediction_errors(
    {.name = "prediction_error", .place = 590, .whole = true},
    {{"score", "score", "1", "score that is predicted",
      "`exp-logit`: s = exp(logit); `attention`: s = A", VariableType::text, Known{scores}},
     {"predictor", "predictor", "1", "predictor of scores",
      "moving averages by decay (the past's weight), mean of all rows since n, of the last 32, the "
      "last row",
      VariableType::text, Known{predictors}},
     {"prediction_error_median", kPrediction, "1", "error of predicted scores, median",
      "median of |s^(t) / s(t+d) - 1| over query heads, prompt entries and steps, d = --horizon; "
      "from a histogram, within 1e-3"},
     {"prediction_error_trimmed_mean", kPrediction, "1", "error of predicted scores, trimmed mean",
      "mean without the lowest and the highest tenth; within 1e-3"},
     {"prediction_error_weighted_mean", kPrediction, "1",
      "error of predicted scores, weighted mean", "mean weighted by A at t+d"}});

}  // namespace
}  // namespace kvsim::measures::prediction_error
