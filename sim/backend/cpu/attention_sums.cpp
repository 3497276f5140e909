// Sums of attention over queries. A tile is up to kTileRows rows of one query head; its exp-scores
// against all keys are kept, key-major, until the last key has given every row its sum; then each
// key's line is folded with 1 / sum. Memory is one tile, whatever the number of queries.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "sim/backend/cpu/loader.hpp"
#include "sim/backend/cpu/verbs.hpp"
#include "sim/core/parallel.hpp"

namespace kvsim {
namespace {

constexpr int64_t kKeyRun = 384;   // keys whose float32 copy is made at a time
constexpr int64_t kTileBytes = int64_t{24} << 20;   // exp-scores of one tile at most
constexpr int64_t kTasks = 32;   // at least, so that threads are busy; fixed, so that sums are
constexpr float kSlack = 20.0f;  // see ReplayTile

/// Works on one tile at a time.
class SumTile {
 public:
  SumTile(const Kernels& kernels, const LayerTrace& layer, const AttentionSumRequest& request,
          TileMemory& memory)
      : kernels_(kernels), layer_(layer), request_(request), memory_(memory),
        operands_(kernels, layer) {}

  /// Adds rows first..first+count-1 of the request, seen by one query head, to sums[columns].
  void run(int64_t head, int64_t first, int64_t count, double* sums) {
    start(head, first, count);
    for (size_t run = 0; run < shifts_.size(); ++run) score(static_cast<int64_t>(run));
    std::vector<double> factor(static_cast<size_t>(ld_), 0.0);
    for (int64_t r = 0; r < count; ++r) factor[static_cast<size_t>(r)] = row_factor(first, r);
    std::vector<float> of_run(static_cast<size_t>(ld_));
    for (size_t run = 0; run < shifts_.size(); ++run) {
      const int64_t key = static_cast<int64_t>(run) * kKeyRun;
      const int64_t keys = std::min({kKeyRun, keys_ - key, request_.columns - key});
      if (keys <= 0) return;
      for (size_t r = 0; r < of_run.size(); ++r)
        of_run[r] = static_cast<float>(
            shifts_[run][r] == shift_[r]
                ? factor[r]
                : factor[r] * std::exp(static_cast<double>(shifts_[run][r] - shift_[r])));
      kernels_.fold(memory_.scores.data() + key * ld_, keys, ld_, of_run.data(), sums + key);
    }
  }

 private:
  int64_t position(int64_t row) const {
    return layer_.info->query_position[static_cast<size_t>(
        request_.rows[static_cast<size_t>(row)])];
  }

  void start(int64_t head, int64_t first, int64_t count) {
    head_ = head;
    ld_ = padded(count, kPad);
    keys_ = position(first + count - 1) + 1;
    std::vector<QueryRow> queries;
    last_.assign(static_cast<size_t>(ld_), static_cast<int32_t>(keys_));
    for (int64_t r = 0; r < count; ++r) {
      queries.push_back({head, request_.rows[static_cast<size_t>(first + r)]});
      last_[static_cast<size_t>(r)] = static_cast<int32_t>(position(first + r));
    }
    first_last_ = last_.front();
    operands_.load_queries(queries, ld_, memory_.queries.reserve(operands_.depth() * ld_));
    memory_.scores.reserve(keys_ * ld_);
    shifts_.assign(static_cast<size_t>((keys_ + kKeyRun - 1) / kKeyRun), {});
    mass_.assign(static_cast<size_t>(ld_), 0.0);
  }

  /// Exp-scores of one run of keys, under the shift that each row has by then.
  void score(int64_t run) {
    const int64_t key = run * kKeyRun, keys = std::min(kKeyRun, keys_ - key);
    constexpr float kNothing = -std::numeric_limits<float>::infinity();
    std::vector<float> maximum(static_cast<size_t>(ld_), kNothing);
    std::vector<int32_t> visible(last_);
    for (int32_t& last : visible) last -= static_cast<int32_t>(key);
    const int64_t kv_head = head_ / layer_.info->group_size();
    ScoreTask task =
        operands_.task(operands_.load_keys(kv_head, key, key + keys, memory_.keys), keys,
                       memory_.queries.data(), ld_);
    task.last_visible = key + keys - 1 > first_last_ ? visible.data() : nullptr;
    task.s = memory_.scores.data() + key * ld_;
    task.maximum = maximum.data();
    const auto ahead = stored_rows(layer_.k, kv_head, key + keys,
                                   std::min(key + keys + kKeyRun, keys_));
    task.ahead = ahead.data();
    task.ahead_bytes = static_cast<int64_t>(ahead.size());
    kernels_.scores(task);
    if (run == 0) shift_ = maximum;
    for (size_t r = 0; r < maximum.size(); ++r) {
      if (!(maximum[r] > shift_[r] + kSlack)) continue;
      mass_[r] *= std::exp(static_cast<double>(shift_[r]) - static_cast<double>(maximum[r]));
      shift_[r] = maximum[r];
    }
    shifts_[static_cast<size_t>(run)] = shift_;
    kernels_.exponentiate(task.s, keys, ld_, shift_.data(), nullptr, mass_.data(), nullptr);
  }

  double row_factor(int64_t first, int64_t r) const {
    double total = mass_[static_cast<size_t>(r)];
    if (!layer_.attention_sink.empty())
      total += std::exp(static_cast<double>(layer_.attention_sink[static_cast<size_t>(head_)]) -
                        static_cast<double>(shift_[static_cast<size_t>(r)]));
    return request_.weights[static_cast<size_t>(first + r)] / total;
  }

  const Kernels& kernels_;
  const LayerTrace& layer_;
  const AttentionSumRequest& request_;
  TileMemory& memory_;                       ///< exp-scores of all keys in `scores`
  ScoreOperands operands_;
  int64_t head_ = 0;
  int64_t ld_ = 0;
  int64_t keys_ = 0;                         ///< that the last row sees
  int32_t first_last_ = 0;                   ///< last key that the first row sees
  std::vector<int32_t> last_;                ///< [ld] last visible key
  std::vector<float> shift_;                 ///< [ld]
  std::vector<std::vector<float>> shifts_;   ///< [runs][ld] shift under each run
  std::vector<double> mass_;                 ///< [ld] sum of exp(logit - shift)
};

}  // namespace

void cpu_attention_sums(const Kernels& kernels, const LayerTrace& layer,
                        const AttentionSumRequest& request, double* out,
                        std::vector<TileMemory>& memory) {
  const int64_t heads = layer.info->num_query_heads;
  const int64_t rows = static_cast<int64_t>(request.rows.size());
  std::fill_n(out, heads * request.columns, 0.0);
  if (rows == 0) return;
  const int64_t longest =
      layer.info->query_position[static_cast<size_t>(request.rows.back())] + 1;
  const int64_t fitting = kTileBytes / (longest * static_cast<int64_t>(sizeof(float)));
  const int64_t height = std::clamp(fitting / kPad * kPad, kPad, kTileRows);
  const int64_t tiles = (rows + height - 1) / height;
  // Every part takes each parts-th tile, so that parts cost the same although later rows see more.
  const int64_t parts = std::min(tiles, (kTasks + heads - 1) / heads);
  Table<double> partial((parts - 1) * heads, request.columns);
  memory.resize(static_cast<size_t>(threads()));
  std::vector<std::unique_ptr<SumTile>> workers(memory.size());
  parallel_for(heads * parts, [&](int64_t task) {
    const size_t thread = static_cast<size_t>(thread_index());
    auto& worker = workers[thread];
    if (worker == nullptr)
      worker = std::make_unique<SumTile>(kernels, layer, request, memory[thread]);
    const int64_t part = task / heads, head = task % heads;
    double* const sums = part == 0 ? out + head * request.columns
                                   : partial.row((part - 1) * heads + head).data();
    for (int64_t tile = part; tile < tiles; tile += parts)
      worker->run(head, tile * height, std::min(height, rows - tile * height), sums);
  });
  for (int64_t at = 0; at < partial.rows(); ++at)
    for (int64_t i = 0; i < request.columns; ++i)
      out[at % heads * request.columns + i] += partial(at, i);
}

}  // namespace kvsim
