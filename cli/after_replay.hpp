#pragma once
#include "analysis/dataset.hpp"

namespace kvsim::cli {

// Where a model that ran with the compressed cache would lose most: the steps with the largest
// stream error.

struct ExpectedLoss {
  int64_t step = 0;  ///< position of the query
  double stream_error = 0;
};

/// Of one policy and budget, largest first, at most `count`; steps that were not evaluated or lose
/// nothing are left out, and everything is where the results hold no stream error.
std::vector<ExpectedLoss> expected_losses(const Dataset& results, int64_t policy, int64_t budget,
                                          size_t count);

/// `734 " the" 0.214, 790 "\n" 0.18`; positions only when `words` (the token of each position) is
/// empty.
std::string expected_loss_text(const std::vector<ExpectedLoss>& losses,
                               const std::vector<std::string>& words);

/// A line for each policy at its smallest budget, below a heading; empty when there is nothing.
std::string expected_loss_table(const Dataset& results, const std::vector<std::string>& words);

/// A token between quotes with line ends and the like visible.
std::string quoted_token(const std::string& token);

/// Choice of --equal-bytes: entries per owner and the bytes held, per policy and budget.
std::string equal_bytes_table(const Dataset& results);

}  // namespace kvsim::cli
