#include "tests/reference/replay.hpp"

#include "tests/reference/reference.hpp"

namespace kvsim::reference {
namespace {

std::vector<double> difference(std::vector<double> a, const std::vector<double>& b) {
  for (size_t c = 0; c < a.size(); ++c) a[c] -= b[c];
  return a;
}

void add_to(std::vector<double>& sum, const std::vector<double>& x) {
  sum.resize(x.size(), 0.0);
  for (size_t c = 0; c < x.size(); ++c) sum[c] += x[c];
}

}  // namespace

StepMeasures replay_step(const LayerTrace& layer, const std::vector<std::vector<uint32_t>>& owners,
                         bool per_query_head, int64_t row) {
  const TraceInfo& info = *layer.info;
  StepMeasures step;
  double importance = 0;
  double kept_importance = 0;
  double attention_sum = 0;
  double kept_attention = 0;
  std::vector<double> change;
  std::vector<double> full;
  for (int head = 0; head < info.num_query_heads; ++head) {
    const auto owner = static_cast<size_t>(per_query_head ? head : head / info.group_size());
    std::vector<bool> present(static_cast<size_t>(info.total_len), true);
    for (int64_t i = 0; i < info.prompt_len; ++i) present[static_cast<size_t>(i)] = false;
    for (const uint32_t i : owners[owner]) present[i] = true;
    const std::vector<double> row_logits = logits(layer, head, row);
    const Attention all = attention(layer, head, row_logits);
    const Attention some = attention(layer, head, row_logits, present);
    for (int64_t i = 0; i < info.prompt_len; ++i) {
      const double a = all.weight[static_cast<size_t>(i)];
      const double gain = a * l1(project(layer, head, value(layer, head, i)));
      importance += gain;
      attention_sum += a;
      if (present[static_cast<size_t>(i)]) kept_importance += gain;
      if (present[static_cast<size_t>(i)]) kept_attention += a;
    }
    const std::vector<double> z = output(layer, head, all.weight);
    const std::vector<double> delta = difference(output(layer, head, some.weight), z);
    const std::vector<double> head_change = project(layer, head, delta);
    const std::vector<double> head_full = project(layer, head, z);
    step.output_error_head.push_back(l2(head_change) / l2(head_full));
    add_to(change, head_change);
    add_to(full, head_full);
  }
  step.retained_importance = kept_importance / importance;
  step.retained_attention = kept_attention / attention_sum;
  step.output_error = l2(change) / l2(full);
  return step;
}

std::vector<StepMeasures> replay(const LayerTrace& layer,
                                 const std::vector<std::vector<uint32_t>>& owners,
                                 bool per_query_head) {
  std::vector<StepMeasures> steps;
  for (int64_t row = layer.info->first_step(); row < std::ssize(layer.info->query_position); ++row)
    steps.push_back(replay_step(layer, owners, per_query_head, row));
  return steps;
}

}  // namespace kvsim::reference
