#include "io/csv.hpp"

#include <cstdlib>

namespace kvsim {
namespace {

/// Would a spreadsheet run it? Numbers begin with a sign, too.
bool is_formula(const std::string& cell) {
  if (cell.empty() || std::string("=+-@\t\r\n").find(cell[0]) == std::string::npos) return false;
  char* end = nullptr;
  std::strtod(cell.c_str(), &end);
  return end != cell.c_str() + cell.size();
}

void add_cell(std::string& line, const std::string& text) {
  const std::string cell = is_formula(text) ? "'" + text : text;
  if (cell.find_first_of(",;\t\"\n\r") == std::string::npos) {
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
