#include "sim/stages/indicator/indicator.hpp"

namespace kvsim::stages::indicator::output_change_mean {

/// visit(place among the candidates, v_i), some values at a time.
template <class Visit>
void for_each_value(const LayerWork& work, int kv_head, Range candidates, const Visit& visit) {
  constexpr int64_t kRows = 256;
  Table<float> values(std::min(kRows, candidates.size()), work.value_dim());
  for (int64_t first = candidates.begin; first < candidates.end; first += kRows) {
    const int64_t last = std::min(candidates.end, first + kRows);
    work.trace().v.read(kv_head, first, last, values.data());
    for (int64_t i = first; i < last; ++i) visit(i - candidates.begin, values.row(i - first));
  }
}

/// output += sum of share_i v_i.
void add_values(const LayerWork& work, int kv_head, Range candidates, std::span<const double> share,
                std::span<double> output) {
  for_each_value(work, kv_head, candidates, [&](size_t at, std::span<const float> v) {
    for (size_t c = 0; c < v.size(); ++c) output[c] += share[at] * static_cast<double>(v[c]);
  });
}

/// (output - v) G (output - v)^T.
double square_of_gap(std::span<const double> output, std::span<const float> v,
                     const Table<double>& gram) {
  double squares = 0;
  for (int64_t r = 0; r < std::ssize(v); ++r) {
    double sum = 0;
    for (size_t c = 0; c < v.size(); ++c)
      sum += gram.row(r)[c] * (output[c] - static_cast<double>(v[c]));
    squares += (output[r] - static_cast<double>(v[r])) * sum;
  }
  return squares;
}

/// Attention is aggregated first; the change of the output follows from the aggregate.
struct MeanRows : AggregatedRows {
  explicit MeanRows(LayerWork& work) : work_(work) {}

  void start(const AttentionBlock& block) override {
    metrics_.clear();
    for (int head = block.kv_head * block.heads; head < (block.kv_head + 1) * block.heads; ++head)
      metrics_.push_back(&work_.output_metric(head, head));
  }

  /// a/(1-a) * ||(mean output - v_i) W^h||; the mean output is not renormalised (as coded).
  void finish(int first_head, Range candidates,
              std::span<std::vector<double>> rows) const override {
    const int kv_head = first_head / work_.group_size();
    const int64_t dv = work_.value_dim();
    Table<double> outputs(std::ssize(rows), dv), turned(std::ssize(rows), dv);
    std::vector<double> own(rows.size());
    parallel_for(std::ssize(rows), [&](int64_t head) {
      const auto output = outputs.row(head), turn = turned.row(head);
      add_values(work_, kv_head, candidates, rows[head], output);
      for (int64_t r = 0; r < dv; ++r)
        for (int64_t c = 0; c < dv; ++c)
          turned(head, c) += outputs(head, r) * metrics_[head]->gram(r, c);
      own[head] = std::inner_product(output.begin(), output.end(), turn.begin(), 0.0);
    });
    Table<double> products(std::ssize(rows), candidates.size());
    work_.backend().value_products(work_.trace(), kv_head, turned.data(), turned.rows(), candidates,
                                   products.data());
    parallel_for(std::ssize(rows), [&](int64_t head) {
      score(kv_head, *metrics_[head], outputs.row(head), own[head], candidates, products.row(head),
            rows[head]);
    });
  }

 private:
  /// row: from attention to scores. `own`: output G output^T; `products`: output G v_i^T.
  void score(int kv_head, const OutputMetric& metric, std::span<const double> output, double own,
             Range candidates, std::span<const double> products, std::span<double> row) const {
    std::vector<float> v(output.size());
    for (int64_t at = 0; at < std::ssize(row); ++at) {
      const int64_t i = candidates.begin + at;
      const double form = metric.forms[i];
      double squares = own - 2 * products[at] + form;
      if (squares < kCancelled * (own + form)) {
        work_.trace().v.read(kv_head, i, i + 1, v.data());
        squares = square_of_gap(output, v, metric.gram);
      }
      const double share = row[at];
      row[at] = share < 1 ? share / (1 - share) * std::sqrt(std::max(squares, 0.0)) : INFINITY;
    }
  }

  LayerWork& work_;
  std::vector<const OutputMetric*> metrics_;  // of the block's heads
};

struct OutputChangeMean : RowIndicator, AggregatesFirst {
  OutputChangeMean()
      : RowIndicator({"indicator", "output-change-mean",
                      "the output's change, from attention aggregated over the queries first",
                      "ReST-KV code"},
                     {.cost = 8}) {}
  std::unique_ptr<IndicatorRows> rows(LayerWork& work, const Settings&,
                                      const Segment&) const override {
    return std::make_unique<MeanRows>(work);
  }
};

/// Attention is aggregated first; the error of the head's output follows from its shares.
struct ValueChangeRows : AggregatedRows {
  explicit ValueChangeRows(LayerWork& work) : work_(work) {}

  /// a / (1 - a) |sum a v - v_i|, a brought to a sum of 1 over the candidates.
  void finish(int first_head, Range candidates,
              std::span<std::vector<double>> rows) const override {
    const int kv_head = first_head / work_.group_size();
    parallel_for(std::ssize(rows), [&](int64_t head) {
      std::vector<double>& share = rows[head];
      double sum = 0;
      for (const double a : share) sum += a;
      for (double& a : share) a = sum > 0 ? a / sum : 0;
      std::vector<double> output(work_.value_dim(), 0.0);
      add_values(work_, kv_head, candidates, share, output);
      for_each_value(work_, kv_head, candidates, [&](size_t at, std::span<const float> v) {
        double squares = 0;
        for (size_t c = 0; c < v.size(); ++c) {
          const double gap = output[c] - static_cast<double>(v[c]);
          squares += gap * gap;
        }
        double& a = share[at];
        a = a < 1 ? a / (1 - a) * std::sqrt(squares) : INFINITY;
      });
    });
  }

 private:
  LayerWork& work_;
};

struct ValueChangeMean : RowIndicator, AggregatesFirst {
  ValueChangeMean()
      : RowIndicator({"indicator", "value-change-mean",
                      "the head's output error when an entry goes, from attention aggregated and "
                      "normalised first",
                      "CAOTE"}) {}
  std::unique_ptr<IndicatorRows> rows(LayerWork& work, const Settings&,
                                      const Segment&) const override {
    return std::make_unique<ValueChangeRows>(work);
  }
};
const Register<Indicator, OutputChangeMean, ValueChangeMean> registered;

}  // namespace kvsim::stages::indicator::output_change_mean
