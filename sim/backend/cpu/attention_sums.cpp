// Sums of attention over queries. A tile is up to kTileRows rows of one query head; its exp-scores
// against all keys are kept, key-major, until the last key has given every row its sum; then each
// key's line is folded with 1 / sum. Means over a group are collected in a second tile, head after
// head. Memory is one tile, or two, whatever the number of queries.

#include "sim/backend/cpu/verbs.hpp"

namespace kvsim {
namespace {

constexpr int64_t kKeys = 384;  // keys whose float32 copy is made at a time
constexpr int64_t kTasks = 32;  // of one head, at least; fixed, so that sums are

/// Works on one tile at a time.
class SumTile {
 public:
  SumTile(const Kernels& kernels, const Shapes& shapes, const LayerTrace& layer,
          const AttentionSumRequest& request, TileMemory& memory)
      : kernels_(kernels), shapes_(shapes), layer_(layer), request_(request), memory_(memory),
        operands_(kernels, layer) {}

  /// Adds rows of the request (a range of its list), seen by the query heads of the range (one, or
  /// all of a group), to `sums`.
  void run(Range heads, Range rows, std::vector<Table<double>>& sums) {
    choose(rows);
    for (int64_t head = heads.begin; head < heads.end; ++head) {
      start(head);
      for (int64_t run = 0; run < std::ssize(shifts_); ++run) score(run);
      for (int64_t r = 0; r < count_; ++r) share_[r] = 1 / total(r);
      for (size_t run = 0; run < shifts_.size(); ++run) add_run(run, heads, sums);
    }
    for (const size_t s : wanted_)
      if (request_.sums[s].of_groups()) add_group(heads, request_.sums[s], sums[s]);
  }

 private:
  int64_t position(int64_t r) const { return layer_.info->query_position[first_ + r]; }

  /// Stored queries from the first to the last one of these, and the sums that count any.
  void choose(Range rows) {
    rows_ = rows;
    first_ = request_.rows[rows.begin] / kPad * kPad;
    count_ = request_.rows[rows.end - 1] + 1 - first_;
    ld_ = padded(count_, kPad);
    keys_ = position(count_ - 1) + 1;
    wanted_.clear();
    for (size_t s = 0; s < request_.sums.size(); ++s)
      if (std::any_of(request_.sums[s].weights.begin() + rows.begin,
                      request_.sums[s].weights.begin() + rows.end,
                      [](double weight) { return weight != 0; }))
        wanted_.push_back(s);
    last_.assign(ld_, static_cast<int32_t>(keys_));
    for (int64_t r = 0; r < count_; ++r) last_[r] = static_cast<int32_t>(position(r));
  }

  void start(int64_t head) {
    head_ = head;
    std::vector<QueryRow> queries;
    for (int64_t r = 0; r < count_; ++r) queries.push_back({head, first_ + r});
    first_last_ = last_.front();
    operands_.load_queries(queries, ld_, memory_.queries.reserve(operands_.depth() * ld_));
    memory_.scores.reserve(keys_ * ld_);
    if (std::ranges::any_of(request_.sums, &AttentionSum::of_groups))
      memory_.accumulators.reserve(keys_ * ld_);
    share_.assign(ld_, 0.0);
    shifts_.assign((keys_ + kKeys - 1) / kKeys, {});
    mass_.assign(ld_, 0.0);
  }

  /// Exp-scores of one run of keys, under the shift that each row has by then.
  void score(int64_t run) {
    const int64_t key = run * kKeys, keys = std::min(kKeys, keys_ - key);
    std::vector<float> maximum(ld_, kMinusInfinity);
    std::vector<int32_t> visible(last_);
    for (int32_t& last : visible) last -= static_cast<int32_t>(key);
    const int64_t kv_head = head_ / layer_.info->group_size();
    ScoreTask task = operands_.task(operands_.load_keys(kv_head, key, key + keys, memory_.keys),
                                    keys, memory_.queries.data(), ld_);
    task.last_visible = key + keys - 1 > first_last_ ? visible.data() : nullptr;
    task.s = memory_.scores.data() + key * ld_;
    task.maximum = maximum.data();
    task.block = shapes_.score_block;
    const auto ahead = stored_rows(layer_.k, kv_head, key + keys,
                                   std::min(key + keys + kKeys, keys_));
    task.ahead = ahead.data();
    task.ahead_bytes = std::ssize(ahead);
    kernels_.scores(task);
    if (run == 0) shift_ = maximum;
    for (size_t r = 0; r < maximum.size(); ++r) {
      if (!(maximum[r] > shift_[r] + kSlack)) continue;
      mass_[r] *= std::exp(static_cast<double>(shift_[r]) - static_cast<double>(maximum[r]));
      shift_[r] = maximum[r];
    }
    shifts_[run] = shift_;
    kernels_.exponentiate(task.s, keys, ld_, shift_.data(), nullptr, mass_.data(), nullptr);
  }

  double total(int64_t r) const {
    return mass_[r] + sink_mass(sink_logit(layer_, head_), static_cast<double>(shift_[r]));
  }

  /// values[row of the tile], 0 for rows that the request does not name.
  template <class T>
  const T* of_rows(const std::vector<double>& values, std::vector<T>& out) const {
    out.assign(ld_, T{});
    for (int64_t j = rows_.begin; j < rows_.end; ++j)
      out[request_.rows[j] - first_] = static_cast<T>(values[j]);
    return out.data();
  }

  /// One run of keys of the head at work.
  void add_run(size_t run, Range heads, std::vector<Table<double>>& sums) {
    const int64_t key = static_cast<int64_t>(run) * kKeys;
    const int64_t keys = std::min({kKeys, keys_ - key, request_.columns - key});
    if (keys <= 0) return;
    const float* const e = memory_.scores.data() + key * ld_;
    std::vector<double> share = share_;  // what exp-scores of the run are multiplied with
    for (size_t r = 0; r < share.size(); ++r)
      if (shifts_[run][r] != shift_[r])
        share[r] *= std::exp(static_cast<double>(shifts_[run][r] - shift_[r]));
    bool of_groups = false;
    for (const size_t s : wanted_) {
      const AttentionSum& sum = request_.sums[s];
      of_groups |= sum.of_groups();
      if (sum.of_groups()) continue;
      double* const out = sums[s].row(head_).data() + key;
      if (sum.of == AttentionSum::Of::below) {
        add_below(sum, key, keys, share, out);
        continue;
      }
      of_rows(sum.weights, weight_);
      for (size_t r = 0; r < share.size(); ++r) weight_[r] *= share[r];
      kernels_.fold(e, keys, ld_, narrowed(weight_, 1), out);
    }
    if (of_groups)
      kernels_.add_scaled(e, keys, ld_, narrowed(share, heads.size()), head_ == heads.begin,
                          memory_.accumulators.data() + key * ld_);
  }

  /// x / count in float32.
  const float* narrowed(const std::vector<double>& x, int64_t count) {
    factor_.resize(x.size());
    for (size_t r = 0; r < x.size(); ++r)
      factor_[r] = static_cast<float>(x[r] / static_cast<double>(count));
    return factor_.data();
  }

  void add_below(const AttentionSum& sum, int64_t key, int64_t keys,
                 const std::vector<double>& share, double* out) {
    std::vector<int32_t> visible(last_);
    for (int32_t& last : visible) last -= static_cast<int32_t>(key);
    std::vector<float> bound, weight;
    kernels_.fold_below({.e = memory_.scores.data() + key * ld_,
                         .keys = keys,
                         .ld = ld_,
                         .factor = narrowed(share, 1),
                         .bound = of_rows(sum.bounds, bound),
                         .weight = of_rows(sum.weights, weight),
                         .last_visible = visible.data(),
                         .out = out});
  }

  /// All keys, once the means over the group are there.
  void add_group(Range heads, const AttentionSum& sum, Table<double>& out) {
    kernels_.fold64(memory_.accumulators.data(), std::min(keys_, request_.columns), ld_,
                    of_rows(sum.weights, weight_), sum.of == AttentionSum::Of::group_square,
                    out.row(heads.begin / heads.size()).data());
  }

  const Kernels& kernels_;
  const Shapes& shapes_;
  const LayerTrace& layer_;
  const AttentionSumRequest& request_;
  TileMemory& memory_;  ///< exp-scores of all keys in `scores`, means in `accumulators`
  ScoreOperands operands_;
  int64_t head_ = 0;
  Range rows_;                     ///< of the request's list
  std::vector<size_t> wanted_;     ///< sums that count any of these
  int64_t first_ = 0, count_ = 0;  ///< rows of the tile: stored queries
  int64_t ld_ = 0;
  int64_t keys_ = 0;                        ///< that the last row sees
  int32_t first_last_ = 0;                  ///< last key that the first row sees
  std::vector<int32_t> last_;               ///< [ld] last visible key
  std::vector<float> shift_;                ///< [ld]
  std::vector<std::vector<float>> shifts_;  ///< [runs][ld] shift under each run
  std::vector<double> mass_;                ///< [ld] sum of exp(logit - shift)
  std::vector<double> share_;               ///< [ld] what makes attention of exp-scores
  std::vector<double> weight_;              ///< [ld]
  std::vector<float> factor_;               ///< [ld]
};

/// Ranges of the list of rows that lie in the same `height` stored queries.
std::vector<Range> tiles_of(const std::vector<int64_t>& rows, int64_t height) {
  std::vector<Range> tiles;
  for (int64_t j = 0; j < std::ssize(rows); ++j) {
    const auto at = static_cast<size_t>(j);
    if (j == 0 || rows[at] / height != rows[at - 1] / height) tiles.push_back({j, j});
    tiles.back().end = j + 1;
  }
  return tiles;
}

}  // namespace

std::vector<Table<double>> CpuBackend::attention_sums(const LayerTrace& layer,
                                                      const AttentionSumRequest& request) {
  std::vector<TileMemory>& memory = replay_memory_.tiles;
  const int64_t heads = layer.info->num_query_heads, kv_heads = layer.info->num_kv_heads;
  const auto zeros = [&] {
    std::vector<Table<double>> tables;
    for (const AttentionSum& sum : request.sums)
      tables.emplace_back(sum.of_groups() ? kv_heads : heads, request.columns);
    return tables;
  };
  const int64_t fitting = shapes_.sum_bytes /
                          (layer.k.dim(1) * static_cast<int64_t>(sizeof(float)));
  const int64_t height = std::clamp(fitting / kPad * kPad, kPad, kTileRows);
  // Tiles, rows in them and parts do not depend on which rows are asked for: what else is summed
  // changes no bit. Every part takes each parts-th tile: later rows see more.
  const std::vector<Range> tiles = tiles_of(request.rows, height);
  const int64_t parts = (kTasks + heads - 1) / heads;
  const bool groups = std::ranges::any_of(request.sums, &AttentionSum::of_groups);
  const int64_t together = groups ? heads / kv_heads : 1;
  std::vector<std::vector<Table<double>>> partial(parts);
  parallel_for(parts, [&](int64_t part) {  // memory is new: it costs
    partial[part] = zeros();
  });
  memory.resize(threads());
  std::vector<std::unique_ptr<SumTile>> workers(memory.size());
  parallel_for(heads / together * parts, [&](int64_t task) {
    const size_t thread = thread_index();
    auto& worker = workers[thread];
    if (worker == nullptr)
      worker = std::make_unique<SumTile>(kernels_, shapes_, layer, request, memory[thread]);
    const int64_t part = task * together / heads;
    const int64_t head = task % (heads / together) * together;
    for (const Range& tile : tiles)
      if (request.rows[tile.begin] / height % parts == part)
        worker->run({head, head + together}, tile, partial[part]);
  });
  std::vector<Table<double>>& out = partial.front();
  for (size_t s = 0; s < out.size(); ++s)
    parallel_for(out[s].rows(), [&](int64_t row) {
      const auto sum = out[s].row(row);
      for (size_t part = 1; part < partial.size(); ++part) {
        const auto more = partial[part][s].row(row);
        for (size_t i = 0; i < sum.size(); ++i) sum[i] += more[i];
      }
    });
  return std::move(out);
}

}  // namespace kvsim
