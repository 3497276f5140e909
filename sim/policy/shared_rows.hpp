#pragma once
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "sim/stages/indicator/indicator.hpp"

namespace kvsim {

/// Rows of an indicator that several records read: each block is prepared once for all of them.
class SharedRows {
 public:
  explicit SharedRows(std::unique_ptr<RowIndicator> rows) : rows_(std::move(rows)) {}

  void start(const AttentionBlock& block, int64_t first_row);
  const RowIndicator* operator->() const { return rows_.get(); }

 private:
  std::unique_ptr<RowIndicator> rows_;
  std::tuple<int, int64_t, int64_t> prepared_{-1, -1, -1};  ///< KV head, first row, rows
};

/// The rows of one layer by all that they depend on.
class RowsOfLayer {
 public:
  explicit RowsOfLayer(LayerWork& work) : work_(work) {}
  /// Null for indicators without rows. `rows_outer`: of the pass that shows the blocks.
  std::shared_ptr<SharedRows> rows(const Settings& settings, const Segment& segment,
                                   bool rows_outer);
  /// Memory for whoever works on a block, until the next one does.
  std::shared_ptr<Buffer<double>> memory() { return memory_; }

 private:
  using Name = std::tuple<std::map<std::string, std::string>, int64_t, int64_t,
                          std::vector<int64_t>, int, std::vector<int64_t>, bool>;
  LayerWork& work_;
  std::shared_ptr<Buffer<double>> memory_ = std::make_shared<Buffer<double>>();
  std::map<Name, std::shared_ptr<SharedRows>> rows_;
};

}  // namespace kvsim
