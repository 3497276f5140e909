#include "run/trace/synth.hpp"

#include <nlohmann/json.hpp>
#include <numbers>

#include "io/trace_writer.hpp"
#include "run/trace/attention_reference.hpp"
#include "sim/core/numbers.hpp"

namespace kvsim {
namespace {

// Names of random streams: each number drawn depends on (seed, stream and layer, head, place) only.
enum Stream : uint64_t {
  kKeys,
  kValues,
  kQueries,
  kProjection,
  kNorms,
  kSinks,
  kStrength,
  kHitters,
  kSpikes,
  kStreams
};

constexpr double kHitterLogit = 5;
constexpr double kHotSpotLogit = 4;
constexpr double kSpikeLogit = 6;  // above ln N
constexpr int64_t kChecks = 8;     // positions whose outputs are recorded

/// About normal, mean 0 and variance 1: the sum of four uniforms. Unlike Box-Muller it needs no
/// library function, so that every machine draws the same bits.
double bell(uint64_t key) {
  const uint64_t x = split_mix(key);
  const uint64_t sum = (x & 0xFFFF) + (x >> 16 & 0xFFFF) + (x >> 32 & 0xFFFF) + (x >> 48);
  return (static_cast<double>(sum + 2) / 65536 - 2) * std::numbers::sqrt3;
}

uint64_t row_key(uint64_t seed, Stream stream, int layer, int64_t head, int64_t row) {
  const uint64_t place = static_cast<uint64_t>(layer) * kStreams + stream;
  uint64_t key = split_mix(split_mix(seed) + place);
  key = split_mix(key + static_cast<uint64_t>(head));
  return split_mix(key + static_cast<uint64_t>(row));
}

/// Axis 0 of q and k carries the heavy hitters, the next 2F axes a code of the position, the rest
/// noise.
class Layer {
 public:
  Layer(const SynthConfig& config, const TraceInfo& info, const SynthPlan& plan, int layer)
      : config_(config), info_(info), layer_(layer) {
    frequencies_ = std::min<int64_t>(4, (config.head_dim - 2) / 2);
    noise_begin_ = 1 + 2 * frequencies_;
    hitters_.insert(plan.heavy_hitters.begin(), plan.heavy_hitters.end());
    spikes_ = plan.spikes;
  }

  void fill_key(int64_t head, int64_t position, float* out) const {
    fill_noise(kKeys, head, position, out);
    out[0] = hitters_.count(position) > 0 ? 1.0f : 0.0f;
    encode(static_cast<double>(position), 1.0, out);
  }

  void fill_query(int64_t head, int64_t position, float* out) const {
    const double looks_at = head % 2 == 0 ? hot_spot(config_, position)
                                          : static_cast<double>(position);
    fill_query(head, position, looks_at, out);
    for (const Spike& spike : spikes_)
      if (spike.step == position) look_at(head / info_.group_size(), spike.position, out);
  }

  /// One that looks at the place `looks_at`, beside the heavy hitters.
  void fill_query(int64_t head, int64_t position, double looks_at, float* out) const {
    const int64_t kv_head = head / info_.group_size();
    fill_noise(kQueries, head, position, out);
    const double strength = 0.6 + 0.8 * uniform(config_.seed, kStrength,
                                                static_cast<uint64_t>(layer_),
                                                static_cast<uint64_t>(kv_head));
    out[0] = static_cast<float>(kHitterLogit * strength / info_.attention_scale);
    encode(looks_at, kHotSpotLogit / info_.attention_scale / static_cast<double>(frequencies_),
           out);
  }

  /// Heavy hitters have small values, as attention sinks of real models do.
  void fill_value(int64_t head, int64_t position, float* out) const {
    const uint64_t key = row_key(config_.seed, kValues, layer_, head, position);
    const double size = hitters_.count(position) > 0 ? 0.2 : 1.0;
    for (int64_t c = 0; c < config_.value_dim; ++c)
      out[c] = static_cast<float>(size * bell(key + static_cast<uint64_t>(c)));
  }

  void fill_projection(int64_t head, int64_t row, float* out) const {
    const uint64_t key = row_key(config_.seed, kProjection, layer_, head, row);
    const double size = 1 / std::sqrt(static_cast<double>(config_.heads) *
                                      static_cast<double>(config_.value_dim));
    for (int64_t c = 0; c < config_.hidden; ++c)
      out[c] = static_cast<float>(size * bell(key + static_cast<uint64_t>(c)));
  }

 private:
  void fill_noise(Stream stream, int64_t head, int64_t position, float* out) const {
    const uint64_t key = row_key(config_.seed, stream, layer_, head, position);
    for (int64_t c = noise_begin_; c < config_.head_dim; ++c)
      out[c] = static_cast<float>(bell(key + static_cast<uint64_t>(c)));
  }

  /// Cosines and sines whose product of two codes peaks where the positions agree.
  void encode(double position, double size, float* out) const {
    double period = 2 * static_cast<double>(info_.total_len);
    for (int64_t f = 0; f < frequencies_; ++f) {
      const double angle = 2 * std::numbers::pi * position / period;
      out[1 + 2 * f] = static_cast<float>(size * std::cos(angle));
      out[2 + 2 * f] = static_cast<float>(size * std::sin(angle));
      period /= 4;
    }
  }

  /// Points the noise part of a query at the noise part of one key, which then gains ln N + 6.
  void look_at(int64_t kv_head, int64_t position, float* out) const {
    std::vector<float> key(config_.head_dim);
    fill_noise(kKeys, kv_head, position, key.data());
    double square = 0;
    for (int64_t c = noise_begin_; c < config_.head_dim; ++c) square += double{key[c]} * key[c];
    const double gain = (std::log(static_cast<double>(info_.total_len)) + kHitterLogit * 1.4 +
                         kSpikeLogit) /
                        info_.attention_scale / std::max(square, 0.1);
    for (int64_t c = noise_begin_; c < config_.head_dim; ++c)
      out[c] = static_cast<float>(gain * key[c]);
  }

  const SynthConfig& config_;
  const TraceInfo& info_;
  const int layer_;
  int64_t frequencies_ = 1;
  int64_t noise_begin_ = 3;
  std::set<int64_t> hitters_;
  std::vector<Spike> spikes_;
};

/// A tensor of the configured type; fill(a, b, row) sets one row in float32.
template <class Fill>
Tensor make_tensor(ElementType type, std::array<int64_t, 3> shape, const Fill& fill) {
  Tensor tensor(type, shape);
  constexpr int64_t kBlock = 64;
  const int64_t blocks = (shape[1] + kBlock - 1) / kBlock;
  parallel_for(shape[0] * blocks, [&](int64_t task) {
    const int64_t a = task / blocks, first = task % blocks * kBlock;
    std::vector<float> row(shape[2]);
    for (int64_t b = first; b < std::min(first + kBlock, shape[1]); ++b) {
      fill(a, b, row.data());
      const size_t at = static_cast<size_t>((a * shape[1] + b) * shape[2]) * element_size(type);
      narrow(type, row.data(), shape[2], tensor.data() + at);
    }
  });
  return tensor;
}

/// Token t of the probe looks at entry t; keys and values stand behind everything else.
ProbeLayer make_probe(const SynthConfig& config, const TraceInfo& info, const Layer& source) {
  const int64_t tokens = info.probes.front().tokens(), first = info.total_len;
  ProbeLayer probe;
  probe.q = make_tensor(config.type, {config.heads, tokens, config.head_dim},
                        [&](int64_t h, int64_t t, float* row) {
    source.fill_query(h, first + t, static_cast<double>(t), row);
  });
  probe.k = make_tensor(
      config.type, {config.kv_heads, tokens, config.head_dim},
      [&](int64_t h, int64_t t, float* row) { source.fill_key(h, first + t, row); });
  probe.v = make_tensor(
      config.type, {config.kv_heads, tokens, config.value_dim},
      [&](int64_t h, int64_t t, float* row) { source.fill_value(h, first + t, row); });
  return probe;
}

LayerTrace make_layer(const SynthConfig& config, const TraceInfo& info, const SynthPlan& plan,
                      int index) {
  const Layer source(config, info, plan, index);
  const auto queries = std::ssize(info.query_position);
  LayerTrace layer;
  layer.info = &info;
  layer.layer = index;
  layer.scale = info.attention_scale;
  layer.softcap = config.softcap;
  layer.sliding_window = index % 2 == 1 ? config.sliding_window : 0;
  layer.q = make_tensor(
      config.type, {config.heads, queries, config.head_dim},
      [&](int64_t h, int64_t r, float* row) { source.fill_query(h, info.query_position[r], row); });
  layer.k = make_tensor(config.type, {config.kv_heads, info.total_len, config.head_dim},
                        [&](int64_t h, int64_t i, float* row) { source.fill_key(h, i, row); });
  layer.v = make_tensor(config.type, {config.kv_heads, info.total_len, config.value_dim},
                        [&](int64_t h, int64_t i, float* row) { source.fill_value(h, i, row); });
  layer.wo = make_tensor(
      config.type, {config.heads, config.value_dim, config.hidden},
      [&](int64_t h, int64_t r, float* row) { source.fill_projection(h, r, row); });
  const double norm = std::sqrt(static_cast<double>(config.hidden)) * (1 + index);
  for (const int64_t position : info.query_position)
    layer.residual_norm.push_back(static_cast<float>(
        norm * (0.8 + 0.4 * uniform(config.seed, kNorms, static_cast<uint64_t>(index),
                                    static_cast<uint64_t>(position)))));
  for (int h = 0; h < config.heads && config.sink; ++h)
    layer.attention_sink.push_back(
        static_cast<float>(bell(row_key(config.seed, kSinks, index, h, 0))));
  const std::vector<double> outputs = attention_outputs(layer, info.check_position);
  layer.check_output.assign(outputs.begin(), outputs.end());
  if (info.probes.empty()) return layer;
  layer.probes.push_back(make_probe(config, info, source));
  ProbeLayer& probe = layer.probes.front();
  for (int64_t t = 0; t < config.prompt; ++t)
    for (auto* norms : {&probe.residual_norm, &probe.input_norm, &probe.output_gradient})
      norms->push_back(layer.residual_norm[static_cast<size_t>(t) % layer.residual_norm.size()]);
  const std::vector<double> recorded = probe_outputs(layer, 0);
  probe.check_output.assign(recorded.begin(), recorded.end());
  return layer;
}

std::string source_text(const SynthConfig& config, const SynthPlan& plan) {
  nlohmann::ordered_json source;
  source["how"] = "kvsim synth";
  source["seed"] = config.seed;
  source["heavy_hitters"] = plan.heavy_hitters;
  for (const Spike& spike : plan.spikes)
    source["spikes"].push_back({{"step", spike.step}, {"position", spike.position}});
  return source.dump();
}

/// The prompt read again in chunks.
ProbeInfo make_probe_info(const SynthConfig& config) {
  ProbeInfo probe;
  probe.name = "repeat";
  probe.has_keys = probe.has_residual_norm = probe.has_input_norm = true;
  probe.has_output_gradient = true;
  for (int64_t begin = 0; begin < config.prompt; begin += config.probe_chunk) {
    const int64_t end = std::min(begin + config.probe_chunk, config.prompt);
    probe.parts.push_back({{begin, end}, {begin, end}});
    for (int64_t t = begin; t < end; ++t) probe.position.push_back(config.prompt + t - begin);
  }
  const int64_t checks = std::min(kChecks, config.prompt);
  for (int64_t c = 1; c <= checks; ++c) probe.check_token.push_back(c * config.prompt / checks - 1);
  return probe;
}

TraceInfo make_info(const SynthConfig& config, const SynthPlan& plan) {
  TraceInfo info;
  info.model = "synthetic";
  info.source = source_text(config, plan);
  info.num_layers = config.num_layers;
  info.num_query_heads = config.heads;
  info.num_kv_heads = config.kv_heads;
  info.head_dim = config.head_dim;
  info.hidden_size = config.hidden;
  info.prompt_len = config.prompt;
  info.total_len = config.prompt + config.steps;
  info.attention_scale = 1 / std::sqrt(static_cast<double>(config.head_dim));
  info.spans = config.spans;
  info.has_residual_norm = true;
  const int64_t first = config.query_window < 0
                            ? 0
                            : std::max<int64_t>(0, config.prompt - config.query_window);
  for (int64_t p = first; p < info.total_len; ++p) info.query_position.push_back(p);
  const auto stored = std::ssize(info.query_position);
  const int64_t checks = std::min(kChecks, stored);
  for (int64_t c = 1; c <= checks; ++c)  // evenly spaced, the last position among them
    info.check_position.push_back(info.query_position[c * stored / checks - 1]);
  if (config.probe_chunk > 0) info.probes.push_back(make_probe_info(config));
  if (config.head_dim % 2 == 0)
    for (int64_t f = 0; f < config.head_dim / 2; ++f)
      info.rope.inv_freq.push_back(
          std::pow(10000.0, -2.0 * static_cast<double>(f) / static_cast<double>(config.head_dim)));
  return info;
}

}  // namespace

double hot_spot(const SynthConfig& config, int64_t position) {
  if (position < config.prompt) return static_cast<double>(position);
  const double done = static_cast<double>(position - config.prompt + 1) /
                      static_cast<double>(std::max<int64_t>(config.steps, 1));
  return static_cast<double>(config.prompt) * (1 - done);
}

SynthPlan plan_synth(const SynthConfig& config) {
  SynthPlan plan;
  const auto draw = [&](Stream stream, int64_t i) {
    return std::min(config.prompt - 1,
                    static_cast<int64_t>(uniform(config.seed, stream, 0, static_cast<uint64_t>(i)) *
                                         static_cast<double>(config.prompt)));
  };
  std::set<int64_t> hitters{0};
  for (int64_t i = 0; i < config.prompt / 64; ++i) hitters.insert(draw(kHitters, i));
  plan.heavy_hitters.assign(hitters.begin(), hitters.end());
  const int64_t count = std::min<int64_t>(config.steps, 1 + config.steps / 32);
  for (int64_t i = 0; i < count; ++i) {  // evenly spaced steps, not the first ones
    const int64_t step = config.prompt + (2 * i + 1) * config.steps / (2 * count);
    int64_t position = draw(kSpikes, i);
    while (hitters.count(position) > 0 && position + 1 < config.prompt) ++position;
    plan.spikes.push_back({step, position});
  }
  return plan;
}

void write_synth(const SynthConfig& config, const std::string& path) {
  const SynthPlan plan = plan_synth(config);
  const TraceInfo info = make_info(config, plan);
  TraceWriter writer(path, info);
  std::vector<int32_t> ids;
  std::vector<std::string> texts;
  for (int64_t i = 0; i < info.total_len; ++i) {
    ids.push_back(static_cast<int32_t>(i));
    texts.push_back("t" + std::to_string(i) + " ");
  }
  writer.write_tokens(ids, texts);
  for (int layer = 0; layer < config.num_layers; ++layer)
    writer.write_layer(make_layer(config, info, plan, layer));
  writer.commit();
}

}  // namespace kvsim
