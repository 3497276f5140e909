#pragma once
#include <string>
#include <vector>

namespace kvsim {

/// One line of a CSV file as RFC 4180 has it, with a plain line end: cells with commas, semicolons,
/// tabs, quotes or line ends are quoted, quotes doubled. A text that a spreadsheet would take for a
/// formula (it begins with = + - @ or white space and is no number) gets a ' before it.
std::string csv_line(const std::vector<std::string>& cells);

}  // namespace kvsim
