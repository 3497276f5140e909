#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace kvsim {

/// The names most like `text` by edit distance (a swap of neighbours counts once), nearest first,
/// at most `most`; only those close enough to be what was meant. Words of one meaning (mean, avg)
/// are nearest of all. May be empty.
std::vector<std::string> nearest_names(std::string_view text, const std::vector<std::string>& names,
                                       size_t most = 3);

/// "did you mean A, B or C?", or nothing when no name is near. For Error::Parts::hint.
std::string did_you_mean(std::string_view text, const std::vector<std::string>& names);

}  // namespace kvsim
