#pragma once
#include <string>
#include <vector>

namespace kvsim {

/// One line of a CSV file as RFC 4180 has it, with a plain line end: cells with commas, quotes or
/// line ends are quoted, quotes doubled.
std::string csv_line(const std::vector<std::string>& cells);

}  // namespace kvsim
