#include "run/trace/attention_reference.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "sim/core/error.hpp"
#include "sim/core/layer_trace.hpp"
#include "sim/core/parallel.hpp"
#include "sim/core/stream_share.hpp"

namespace kvsim {
namespace {

constexpr int64_t kRows = 16;       // query rows of one tile; inner loops run over them
constexpr int64_t kKeyBlock = 256;  // keys widened at a time

/// Rows of q at the given positions.
std::vector<int64_t> query_rows(const LayerTrace& layer, const std::vector<int64_t>& positions) {
  const std::vector<int64_t>& stored = layer.info->query_position;
  std::vector<int64_t> rows;
  for (const int64_t position : positions) {
    const auto found = std::lower_bound(stored.begin(), stored.end(), position);
    if (found == stored.end() || *found != position)
      bad_data({.what = "no query is stored where an output is recorded",
                .where = layer.info->path + ": check/query_position",
                .found = std::to_string(position),
                .expected = "positions of query_position"});
    rows.push_back(found - stored.begin());
  }
  return rows;
}

/// One tile of at most kRows queries of head h. Arrays over rows come last, so that loops over rows
/// vectorise without reordering any sum.
class Tile {
 public:
  Tile(const LayerTrace& layer, int64_t head) : layer_(layer), head_(head) {}

  /// out [count][dv] for the query rows rows[0..count-1] at positions[0..count-1].
  void run(const int64_t* rows, const int64_t* positions, int64_t count, double* out) {
    load_queries(rows, count);
    const int64_t last = *std::max_element(positions, positions + count);
    compute_logits(last + 1, positions, count);
    const std::vector<double> sum = exponentiate(last + 1, count);
    add_values(last + 1);
    const int64_t dv = layer_.value_dim();
    for (int64_t r = 0; r < count; ++r)
      for (int64_t c = 0; c < dv; ++c) out[r * dv + c] = outputs_[c * kRows + r] / sum[r];
  }

 private:
  int64_t kv_head() const { return head_ / layer_.info->group_size(); }

  void load_queries(const int64_t* rows, int64_t count) {
    const int64_t d = layer_.q.dim(2);
    queries_.assign(static_cast<size_t>(d * kRows), 0.0);
    std::vector<float> row(static_cast<size_t>(d));
    for (int64_t r = 0; r < count; ++r) {
      layer_.q.read(head_, rows[r], rows[r] + 1, row.data());
      for (int64_t c = 0; c < d; ++c) queries_[c * kRows + r] = row[c];
    }
  }

  /// logits_ [keys][kRows]; -inf where a key is not visible.
  void compute_logits(int64_t keys, const int64_t* positions, int64_t count) {
    const int64_t d = layer_.k.dim(2);
    logits_.assign(static_cast<size_t>(keys * kRows), -std::numeric_limits<double>::infinity());
    std::vector<float> block(static_cast<size_t>(kKeyBlock * d));
    for (int64_t begin = 0; begin < keys; begin += kKeyBlock) {
      const int64_t end = std::min(begin + kKeyBlock, keys);
      layer_.k.read(kv_head(), begin, end, block.data());
      for (int64_t i = begin; i < end; ++i) {
        double dot[kRows] = {};
        const float* key = block.data() + (i - begin) * d;
        for (int64_t c = 0; c < d; ++c)
          for (int64_t r = 0; r < kRows; ++r) dot[r] += queries_[c * kRows + r] * key[c];
        for (int64_t r = 0; r < count; ++r)
          if (visible(i, positions[r])) logits_[i * kRows + r] = capped(layer_.scale * dot[r]);
      }
    }
  }

  /// Turns logits_ into weights exp(logit - the row's largest); returns their sums, sink included.
  std::vector<double> exponentiate(int64_t keys, int64_t count) {
    std::vector<double> sum(kRows, 0.0), top(kRows, -std::numeric_limits<double>::infinity());
    std::fill(top.begin() + count, top.end(), 0.0);  // rows beyond the tile: all weights 0
    const bool sink = !layer_.attention_sink.empty();
    const double sink_logit = sink ? layer_.attention_sink[static_cast<size_t>(head_)] : 0.0;
    for (int64_t i = 0; i < keys; ++i)
      for (int64_t r = 0; r < kRows; ++r) top[r] = std::max(top[r], logits_[i * kRows + r]);
    for (int64_t r = 0; r < kRows && sink; ++r) {
      top[r] = std::max(top[r], sink_logit);
      sum[r] = std::exp(sink_logit - top[r]);
    }
    for (int64_t i = 0; i < keys; ++i)
      for (int64_t r = 0; r < kRows; ++r) {
        double& weight = logits_[i * kRows + r];
        weight = std::exp(weight - top[r]);
        sum[r] += weight;
      }
    return sum;
  }

  bool visible(int64_t i, int64_t position) const {
    const int64_t window = layer_.sliding_window;
    return i <= position && (window == 0 || i > position - window);
  }
  double capped(double logit) const {
    return layer_.softcap > 0 ? layer_.softcap * std::tanh(logit / layer_.softcap) : logit;
  }

  /// outputs_ [dv][kRows] = sum over keys of weight * value.
  void add_values(int64_t keys) {
    const int64_t dv = layer_.value_dim();
    outputs_.assign(static_cast<size_t>(dv * kRows), 0.0);
    std::vector<float> block(static_cast<size_t>(kKeyBlock * dv));
    for (int64_t begin = 0; begin < keys; begin += kKeyBlock) {
      const int64_t end = std::min(begin + kKeyBlock, keys);
      layer_.v.read(kv_head(), begin, end, block.data());
      for (int64_t i = begin; i < end; ++i) {
        const double* weight = logits_.data() + i * kRows;
        const float* value = block.data() + (i - begin) * dv;
        for (int64_t c = 0; c < dv; ++c)
          for (int64_t r = 0; r < kRows; ++r) outputs_[c * kRows + r] += weight[r] * value[c];
      }
    }
  }

  const LayerTrace& layer_;
  const int64_t head_;
  std::vector<double> queries_;  ///< [d][kRows]
  std::vector<double> logits_;   ///< [keys][kRows], then exp(logit - top)
  std::vector<double> outputs_;  ///< [dv][kRows]
};

}  // namespace

std::vector<double> attention_outputs(const LayerTrace& layer,
                                      const std::vector<int64_t>& positions) {
  return outputs_of_rows(layer, query_rows(layer, positions));
}

std::vector<double> outputs_of_rows(const LayerTrace& layer, const std::vector<int64_t>& rows) {
  std::vector<int64_t> positions;
  for (const int64_t row : rows)
    positions.push_back(layer.info->query_position[static_cast<size_t>(row)]);
  const int64_t heads = layer.q.dim(0), dv = layer.value_dim();
  const auto count = static_cast<int64_t>(rows.size());
  std::vector<double> outputs(static_cast<size_t>(heads * count * dv));
  const int64_t tiles = (count + kRows - 1) / kRows;
  parallel_for(heads * tiles, [&](int64_t task) {
    const int64_t head = task / tiles, first = task % tiles * kRows;
    Tile(layer, head)
        .run(rows.data() + first, positions.data() + first, std::min(kRows, count - first),
             outputs.data() + (head * count + first) * dv);
  });
  return outputs;
}

namespace {

/// Both [heads][R][dv].
LayerCheck compared(const LayerTrace& layer, const std::vector<double>& outputs,
                    const std::vector<float>& recorded_outputs) {
  const int64_t heads = layer.q.dim(0);
  const auto per_head = static_cast<int64_t>(outputs.size()) / heads;
  LayerCheck result;
  result.layer = layer.layer;
  for (int64_t h = 0; h < heads; ++h) {
    double difference = 0, size = 0;
    for (int64_t i = h * per_head; i < (h + 1) * per_head; ++i) {
      const double recorded = recorded_outputs[static_cast<size_t>(i)];
      difference += (outputs[static_cast<size_t>(i)] - recorded) *
                    (outputs[static_cast<size_t>(i)] - recorded);
      size += recorded * recorded;
    }
    double error = difference == 0 ? 0 : std::sqrt(difference / size);  // x/0 is infinite
    if (std::isnan(error)) error = std::numeric_limits<double>::infinity();
    if (h == 0 || error > result.error) {
      result.error = error;
      result.head = static_cast<int>(h);
    }
  }
  return result;
}

}  // namespace

LayerCheck check_layer(const LayerTrace& layer) {
  return compared(layer, attention_outputs(layer, layer.info->check_position), layer.check_output);
}

LayerCheck check_added(const LayerTrace& layer) {
  const std::vector<int64_t>& positions = layer.info->check_position;
  const std::vector<double> outputs = attention_outputs(layer, positions);
  const int64_t heads = layer.q.dim(0), dv = layer.value_dim(), count = std::ssize(positions);
  struct Sums {
    double difference = 0, size = 0;
    void add(double found, double recorded) {
      difference += (found - recorded) * (found - recorded);
      size += recorded * recorded;
    }
    double error() const {
      const double relative = difference == 0 ? 0 : std::sqrt(difference / size);
      return std::isnan(relative) ? std::numeric_limits<double>::infinity() : relative;
    }
  };
  Sums added, inner, outer;
  for (int64_t r = 0; r < count; ++r) {
    std::vector<double> z;
    for (int64_t h = 0; h < heads; ++h) {
      const auto from = outputs.begin() + (h * count + r) * dv;
      z.insert(z.end(), from, from + dv);
    }
    const std::vector<int64_t>& stored = layer.info->query_position;
    const auto query = std::ranges::lower_bound(stored, positions[static_cast<size_t>(r)]) -
                       stored.begin();
    double inner_root = 0, outer_root = 0;
    const std::vector<double> y = added_to_stream(layer, query, z, &inner_root, &outer_root);
    for (size_t c = 0; c < y.size(); ++c)
      added.add(y[c],
                static_cast<double>(layer.check_added[static_cast<size_t>(r) * y.size() + c]));
    const auto at = static_cast<size_t>(query);
    if (layer.path.inner.divides) inner.add(inner_root, layer.path.inner.rms[at]);
    if (layer.path.outer.divides) outer.add(outer_root, layer.path.outer.rms[at]);
  }
  LayerCheck result;
  result.layer = layer.layer;
  result.error = std::max({added.error(), inner.error(), outer.error()});
  result.head = LayerCheck::kAdded;
  return result;
}

std::vector<double> probe_outputs(const LayerTrace& layer, int probe) {
  const ProbeInfo& info = layer.info->probes[static_cast<size_t>(probe)];
  const int64_t heads = layer.q.dim(0), dv = layer.value_dim();
  const int64_t count = std::ssize(info.check_token);
  std::vector<double> outputs(static_cast<size_t>(heads * count * dv));
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
                               layer.probes[static_cast<size_t>(probe)].check_output);
  result.probe = layer.info->probes[static_cast<size_t>(probe)].name;
  return result;
}

}  // namespace kvsim
