#pragma once
#include <string>
#include <vector>

#include "sim/core/array.hpp"

namespace kvsim {

/// Needs of a record beside the tensors of a layer: files that it names (`scores=`, `table=`) and
/// the texts of the tokens, read by whoever runs the record: stages never touch a file. Errors are
/// bad data, one line.
class SideFiles {
 public:
  virtual ~SideFiles() = default;
  /// `layers/<l>/score` [owners][n] of the HDF5 file `path`.
  virtual Table<double> scores(const std::string& path, int layer, int64_t owners,
                               int64_t entries) const = 0;
  /// The text table `path`: one row of `columns` numbers per model layer.
  virtual Table<double> table(const std::string& path, int64_t rows, int64_t columns) const = 0;
  /// `tokens/text` of the trace, [N] or empty.
  virtual std::vector<std::string> token_text() const = 0;
};

}  // namespace kvsim
