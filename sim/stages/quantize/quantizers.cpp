#include <algorithm>
#include <cmath>

#include "sim/stages/parameter.hpp"
#include "sim/stages/quantize/quantize.hpp"

namespace kvsim {
namespace keys {

const Declare quant_bits("quant_bits", "count [1, 8] bits", "4", "bits of a quantised number");
const Declare quant_residual("quant_residual", "count >= 0 entries", "128",
                             "newest kept entries that stay as they are; 0: none");

}  // namespace keys

}  // namespace kvsim

namespace kvsim::stages::quantize::quantizers {
namespace {

const Declare quantize("quantize", "kind", "none", "how kept entries are rounded");
const Declare quant_group("quant_group", "count >= 1 numbers", "32",
                          "numbers that share a step and a lowest value");

/// Rounds `count` numbers at values[0], values[stride], ... as one group.
void round_group(float* values, int64_t count, int64_t stride, int64_t bits) {
  float lo = values[0];
  float hi = values[0];
  for (int64_t x = 1; x < count; ++x) {
    lo = std::min(lo, values[x * stride]);
    hi = std::max(hi, values[x * stride]);
  }
  const auto top = static_cast<float>((1 << bits) - 1);
  const float step = (hi - lo) / top;
  for (int64_t x = 0; x < count; ++x) {
    float& value = values[x * stride];
    if (hi == lo || step == 0) {
      value = lo;
      continue;
    }
    const float code = std::clamp(std::nearbyint((value - lo) / step), 0.0f, top);
    value = lo + code * step;
  }
}

/// Groups of consecutive entries, one channel at a time, over the first `entries` rows.
void round_per_channel(Table<float>& x, int64_t entries, int64_t group, int64_t bits) {
  for (int64_t first = 0; first < entries; first += group) {
    for (int64_t c = 0; c < x.columns(); ++c) {
      round_group(&x(first, c), std::min(group, entries - first), x.columns(), bits);
    }
  }
}

/// Groups of consecutive channels, one entry at a time, over the first `entries` rows.
void round_per_entry(Table<float>& x, int64_t entries, int64_t group, int64_t bits) {
  for (int64_t r = 0; r < entries; ++r) {
    for (int64_t c = 0; c < x.columns(); c += group) {
      round_group(&x(r, c), std::min(group, x.columns() - c), 1, bits);
    }
  }
}

int64_t groups_of(int64_t length, int64_t group) { return (length + group - 1) / group; }

/// Entries of `slots` that are quantised when groups run over entries: whole residual blocks.
int64_t whole_blocks(const Settings& settings, int64_t slots) {
  const int64_t residual = settings.count(keys::quant_residual);
  return residual == 0 ? slots : slots / residual * residual;
}

/// Entries that are quantised when groups run over channels: all but the newest.
int64_t all_but_newest(const Settings& settings, int64_t slots) {
  return std::max<int64_t>(0, slots - settings.count(keys::quant_residual));
}

enum class Axis { channel, entry };

int64_t quantised_entries(const Settings& settings, Axis axis, int64_t slots) {
  return axis == Axis::channel ? whole_blocks(settings, slots) : all_but_newest(settings, slots);
}

void round_tensor(const Settings& settings, Axis axis, Table<float>& x) {
  const int64_t entries = quantised_entries(settings, axis, x.rows());
  const auto round = axis == Axis::channel ? round_per_channel : round_per_entry;
  round(x, entries, settings.count(quant_group), settings.count(keys::quant_bits));
}

void count_tensor(const Settings& settings, Axis axis, int64_t slots, int64_t width,
                  QuantizedCount& count) {
  const int64_t entries = quantised_entries(settings, axis, slots);
  const int64_t group = settings.count(quant_group);
  count.numbers += entries * width;
  count.groups += axis == Axis::channel ? groups_of(entries, group) * width
                                        : groups_of(width, group) * entries;
}

const std::vector<std::string> kKeys = {"quant_bits", "quant_group", "quant_residual"};

class NoQuantize : public Quantize {
 public:
  NoQuantize() : Quantize({"quantize", "none", "kept entries stay as they are", "", {}}) {}
  bool changes_entries() const override { return false; }
  void apply(const Settings&, Table<float>&, Table<float>&) const override {}
  QuantizedCount count(const Settings&, int64_t, int64_t, int64_t) const override { return {}; }
};
const Register<Quantize, NoQuantize> none;

/// Uniform rounding with one axis for keys and one for values.
class AxisQuantize : public Quantize {
 public:
  AxisQuantize(KindInfo info, Axis keys, Axis values)
      : Quantize(std::move(info)), keys_(keys), values_(values) {}
  void apply(const Settings& settings, Table<float>& k, Table<float>& v) const override {
    round_tensor(settings, keys_, k);
    round_tensor(settings, values_, v);
  }
  QuantizedCount count(const Settings& settings, int64_t slots, int64_t head_dim,
                       int64_t value_dim) const override {
    QuantizedCount count;
    count_tensor(settings, keys_, slots, head_dim, count);
    count_tensor(settings, values_, slots, value_dim, count);
    return count;
  }
  std::string fault(const Settings& settings) const override {
    const bool over_entries = keys_ == Axis::channel || values_ == Axis::channel;
    if (!over_entries || settings.count(keys::quant_residual) % settings.count(quant_group) == 0) {
      return {};
    }
    return "quant_residual as a multiple of quant_group, since groups run over entries";
  }

 private:
  Axis keys_;
  Axis values_;
};

class Kivi : public AxisQuantize {
 public:
  Kivi()
      : AxisQuantize({"quantize", "kivi", "keys per channel, values per entry", "KIVI", kKeys},
                     Axis::channel, Axis::entry) {}
};
const Register<Quantize, Kivi> kivi;

class PerToken : public AxisQuantize {
 public:
  PerToken()
      : AxisQuantize({"quantize", "per-token", "keys and values per entry", "", kKeys}, Axis::entry,
                     Axis::entry) {}
};
const Register<Quantize, PerToken> per_token;

class PerChannel : public AxisQuantize {
 public:
  PerChannel()
      : AxisQuantize({"quantize", "per-channel", "keys and values per channel", "", kKeys},
                     Axis::channel, Axis::channel) {}
};
const Register<Quantize, PerChannel> per_channel;

}  // namespace
}  // namespace kvsim::stages::quantize::quantizers

namespace kvsim {

const Quantize& quantizer(const Settings& settings) { return chosen<Quantize>(settings); }

}  // namespace kvsim
