#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

/// Small grammars of option values. `option` names the option in error messages.
namespace kvsim::cli {

/// "a,b,c" -> items with white space around them removed; an empty item is a usage error.
std::vector<std::string> split_list(std::string_view text, const std::string& option);

/// "0,5,10-15" -> ascending, without doubles; both ends of a range are included.
std::vector<int> parse_layers(std::string_view text, const std::string& option);

/// A comma list of numbers and ranges FIRST:LAST:STEP, expanded in exact decimal arithmetic:
/// "0.1:0.4:0.1" -> "0.1", "0.2", "0.3", "0.4". LAST is included when a step lands on it. Items
/// keep their kind: with a decimal point or `%` in the range every item has one ("1.0" stays a
/// ratio).
std::vector<std::string> expand_numbers(std::string_view text, const std::string& option);

/// A whole number within [least, most].
int64_t parse_count(std::string_view text, const std::string& option, int64_t least, int64_t most);

/// A finite number within [least, most].
double parse_real(std::string_view text, const std::string& option, double least, double most);

}  // namespace kvsim::cli
