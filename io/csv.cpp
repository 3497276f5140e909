#include "io/csv.hpp"

namespace kvsim {
namespace {

void add_cell(std::string& line, const std::string& cell) {
  if (cell.find_first_of(",\"\n\r") == std::string::npos) {
    line += cell;
    return;
  }
  line += '"';
  for (const char c : cell) {
    if (c == '"') line += '"';
    line += c;
  }
  line += '"';
}

}  // namespace

std::string csv_line(const std::vector<std::string>& cells) {
  std::string line;
  for (size_t i = 0; i < cells.size(); ++i) {
    if (i > 0) line += ',';
    add_cell(line, cells[i]);
  }
  return line + "\n";
}

}  // namespace kvsim
