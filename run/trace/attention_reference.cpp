#include "run/trace/attention_reference.hpp"

namespace kvsim {
namespace {

/// Rows of q at the given positions.
std::vector<int64_t> query_rows(const LayerTrace& layer, const std::vector<int64_t>& positions) {
  const std::vector<int64_t>& stored = layer.info->query_position;
  std::vector<int64_t> rows;
  for (const int64_t position : positions) {
    const auto found = std::lower_bound(stored.begin(), stored.end(), position);
    if (found == stored.end() || *found != position)
      bad_data({"no query is stored where an output is recorded",
                layer.info->path + ": check/query_position", std::to_string(position),
                "positions of query_position"});
    rows.push_back(found - stored.begin());
  }
  return rows;
}

/// How far numbers are from what was recorded, relative to it.
struct Sums {
  double difference = 0, size = 0;
  void add(double found, double recorded) {
    difference += (found - recorded) * (found - recorded);
    size += recorded * recorded;
  }
  double error() const {
    const double relative = difference == 0 ? 0 : std::sqrt(difference / size);  // x/0: infinite
    return std::isnan(relative) ? std::numeric_limits<double>::infinity() : relative;
  }
};

/// Both [heads][R][dv].
LayerCheck compared(const LayerTrace& layer, const std::vector<double>& outputs,
                    const std::vector<float>& recorded_outputs) {
  const int64_t heads = layer.q.dim(0);
  const auto per_head = std::ssize(outputs) / heads;
  LayerCheck result;
  result.layer = layer.layer;
  for (int64_t h = 0; h < heads; ++h) {
    Sums sums;
    for (int64_t i = h * per_head; i < (h + 1) * per_head; ++i)
      sums.add(outputs[i], recorded_outputs[i]);
    if (h == 0 || sums.error() > result.error) {
      result.error = sums.error();
      result.head = static_cast<int>(h);
    }
  }
  return result;
}

}  // namespace

std::vector<double> attention_row(const LayerTrace& layer, int64_t head, int64_t row) {
  const int64_t position = layer.info->query_position[row];
  const int64_t window = layer.sliding_window, keys = position + 1, d = layer.q.dim(2);
  std::vector<float> query(d), block(keys * d);
  layer.q.read(head, row, row + 1, query.data());
  layer.k.read(head / layer.info->group_size(), 0, keys, block.data());
  constexpr double kUnseen = -std::numeric_limits<double>::infinity();
  const bool has_sink = !layer.attention_sink.empty();
  const double sink = has_sink ? layer.attention_sink[head] : kUnseen;
  std::vector<double> weights(keys, kUnseen);
  double largest = sink;
  for (int64_t i = window > 0 ? std::max<int64_t>(keys - window, 0) : 0; i < keys; ++i) {
    const float* const key = block.data() + i * d;
    double logit = 0;
    for (size_t c = 0; c < query.size(); ++c) logit += static_cast<double>(query[c]) * key[c];
    logit *= layer.scale;
    if (layer.softcap > 0) logit = layer.softcap * std::tanh(logit / layer.softcap);
    weights[i] = logit;
    largest = std::max(largest, logit);
  }
  double sum = std::exp(sink - largest);
  for (double& weight : weights) sum += weight = std::exp(weight - largest);
  for (double& weight : weights) weight /= sum;
  return weights;
}

std::vector<double> weighted_values(const LayerTrace& layer, int64_t head,
                                    const std::vector<double>& weights) {
  const int64_t dv = layer.value_dim();
  std::vector<float> values(weights.size() * static_cast<size_t>(dv));
  layer.v.read(head / layer.info->group_size(), 0, std::ssize(weights), values.data());
  std::vector<double> sum(dv, 0.0);
  for (size_t i = 0; i < weights.size(); ++i)
    for (size_t c = 0; c < sum.size(); ++c) sum[c] += weights[i] * values[i * sum.size() + c];
  return sum;
}

std::vector<double> attention_outputs(const LayerTrace& layer,
                                      const std::vector<int64_t>& positions) {
  return outputs_of_rows(layer, query_rows(layer, positions));
}

std::vector<double> outputs_of_rows(const LayerTrace& layer, const std::vector<int64_t>& rows) {
  const int64_t heads = layer.q.dim(0), dv = layer.value_dim(), count = std::ssize(rows);
  std::vector<double> outputs(heads * count * dv);
  parallel_for(heads * count, [&](int64_t task) {
    const int64_t head = task / count;
    const auto weights = attention_row(layer, head, rows[task % count]);
    std::ranges::copy(weighted_values(layer, head, weights), outputs.begin() + task * dv);
  });
  return outputs;
}

LayerCheck check_layer(const LayerTrace& layer) {
  return compared(layer, attention_outputs(layer, layer.info->check_position), layer.check_output);
}

LayerCheck check_added(const LayerTrace& layer) {
  const std::vector<int64_t>& positions = layer.info->check_position;
  const std::vector<double> outputs = attention_outputs(layer, positions);
  const int64_t heads = layer.q.dim(0), dv = layer.value_dim(), count = std::ssize(positions);
  Sums added, inner, outer;
  for (int64_t r = 0; r < count; ++r) {
    std::vector<double> z;
    for (int64_t h = 0; h < heads; ++h) {
      const auto from = outputs.begin() + (h * count + r) * dv;
      z.insert(z.end(), from, from + dv);
    }
    const std::vector<int64_t>& stored = layer.info->query_position;
    const auto query = std::ranges::lower_bound(stored, positions[r]) - stored.begin();
    double inner_root = 0, outer_root = 0;
    const std::vector<double> y = added_to_stream(layer, query, z, &inner_root, &outer_root);
    for (size_t c = 0; c < y.size(); ++c)
      added.add(y[c],
                static_cast<double>(layer.check_added[static_cast<size_t>(r) * y.size() + c]));
    if (layer.path.inner.divides) inner.add(inner_root, layer.path.inner.rms[query]);
    if (layer.path.outer.divides) outer.add(outer_root, layer.path.outer.rms[query]);
  }
  LayerCheck result;
  result.layer = layer.layer;
  result.error = std::max({added.error(), inner.error(), outer.error()});
  result.head = LayerCheck::kAdded;
  return result;
}

std::vector<double> probe_outputs(const LayerTrace& layer, int probe) {
  const ProbeInfo& info = layer.info->probes[probe];
  const int64_t heads = layer.q.dim(0), dv = layer.value_dim();
  const int64_t count = std::ssize(info.check_token);
  std::vector<double> outputs(heads * count * dv);
  int64_t done = 0;
  for (size_t part = 0; part < info.parts.size(); ++part) {
    std::vector<int64_t> rows;
    for (const int64_t token : info.check_token)
      if (info.parts[part].tokens.contains(token))
        rows.push_back(token - info.parts[part].tokens.begin);
    if (rows.empty()) continue;
    const auto view = probe_view(layer, probe, part);
    const std::vector<double> own = outputs_of_rows(view->layer, rows);
    const int64_t size = std::ssize(rows) * dv;
    for (int64_t h = 0; h < heads; ++h)
      std::copy_n(own.begin() + h * size, size, outputs.begin() + (h * count + done) * dv);
    done += std::ssize(rows);
  }
  return outputs;
}

LayerCheck check_probe(const LayerTrace& layer, int probe) {
  LayerCheck result = compared(layer, probe_outputs(layer, probe),
                               layer.probes[probe].check_output);
  result.probe = layer.info->probes[probe].name;
  return result;
}

}  // namespace kvsim
