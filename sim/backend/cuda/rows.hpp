#pragma once
#include <algorithm>
#include <vector>

#include "sim/backend/cuda/memory.hpp"
#include "sim/backend/cuda/walk.hpp"
#include "sim/core/layer_trace.hpp"

namespace kvsim::cuda {

/// A table of query rows, made on the host and brought to the device.
class Rows {
 public:
  void clear() { query_.clear(), head_.clear(), begin_.clear(), end_.clear(); }
  /// Stored query `row` of a query head; it sees positions of the layer's window.
  void add(const LayerTrace& layer, int64_t head, int64_t row) {
    const int64_t position = layer.info->query_position[static_cast<size_t>(row)];
    const int64_t window = layer.sliding_window;
    query_.push_back(static_cast<uint32_t>(head * layer.q.dim(1) + row));
    head_.push_back(static_cast<int32_t>(head));
    begin_.push_back(
        static_cast<int32_t>(window > 0 ? std::max<int64_t>(0, position - window + 1) : 0));
    end_.push_back(static_cast<int32_t>(position + 1));
  }
  /// Row `query` of the queries on the device; it sees positions 0..seen-1.
  void add(int64_t head, int64_t query, int64_t seen) {
    query_.push_back(static_cast<uint32_t>(query));
    head_.push_back(static_cast<int32_t>(head));
    begin_.push_back(0);
    end_.push_back(static_cast<int32_t>(seen));
  }
  int64_t count() const { return static_cast<int64_t>(query_.size()); }
  /// Visible positions of all rows together.
  int64_t begin() const { return *std::min_element(begin_.begin(), begin_.end()); }
  int64_t end() const { return *std::max_element(end_.begin(), end_.end()); }
  /// In one piece, without waiting for it.
  RowTable upload(cudaStream_t stream) {
    sent_.wait();  // the one before
    uint32_t* to = here_.reserve(4 * count());
    to = std::ranges::copy(query_, to).out;
    for (const auto* column : {&head_, &begin_, &end_}) to = std::ranges::copy(*column, to).out;
    const uint32_t* const table = upload_pinned(there_.reserve(4 * count()), here_.data(),
                                                4 * count(), stream);
    sent_.record(stream);
    const auto* const numbers = reinterpret_cast<const int32_t*>(table);
    return {table, numbers + count(), numbers + 2 * count(), numbers + 3 * count()};
  }

 private:
  std::vector<uint32_t> query_;
  std::vector<int32_t> head_, begin_, end_;
  PinnedBuffer<uint32_t> here_;  ///< [query, head, begin, end][rows]
  DeviceBuffer<uint32_t> there_;
  Event sent_;
};

}  // namespace kvsim::cuda
