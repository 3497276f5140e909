#include "io/side_files.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string_view>

#include "io/hdf5.hpp"
#include "sim/core/decimal.hpp"
#include "sim/core/error.hpp"

namespace kvsim {
namespace {

constexpr std::string_view kFunction = "python:";

std::string scores_folder;

/// A token of the file as it may be shown: no control characters, not too long.
std::string shown(const std::string& word) {
  std::string text = "\"";
  for (const char c : word.substr(0, 40)) text += static_cast<unsigned char>(c) < ' ' ? '?' : c;
  return text + (word.size() > 40 ? "...\"" : "\"");
}

std::ifstream open_text(const std::string& path) {
  struct stat status {};
  if (stat(path.c_str(), &status) != 0)
    bad_data({.what = errno == ENOENT ? "no such file" : std::strerror(errno), .where = path});
  if (!S_ISREG(status.st_mode)) bad_data({.what = "not a regular file", .where = path});
  errno = 0;
  std::ifstream file(path);
  if (!file)
    bad_data({.what = errno != 0 ? std::strerror(errno) : "cannot be read", .where = path});
  // The byte order mark that some editors begin files with is no part of the text.
  std::string mark(3, ' ');
  file.read(mark.data(), 3);
  if (mark.starts_with("\xFF\xFE") || mark.starts_with("\xFE\xFF"))
    bad_data({.what = "not UTF-8", .where = path, .found = "UTF-16", .hint = "save it as UTF-8"});
  if (mark != "\xEF\xBB\xBF") {
    file.clear();
    file.seekg(0);
  }
  return file;
}

double parse_number(const std::string& word, const std::string& where) {
  const auto number = Decimal::parse(word);
  if (!number || word.ends_with('%') || !std::isfinite(number->value()))
    bad_data({.what = "not a number",
              .where = where,
              .found = shown(word),
              .expected = "a finite number"});
  return number->value();
}

}  // namespace

void set_scores_folder(const std::string& folder) { scores_folder = folder; }

bool is_function(const std::string& scores) { return scores.starts_with(kFunction); }

std::string scores_file(const std::string& scores, const std::string& trace) {
  if (!is_function(scores)) return scores;
  if (scores_folder.empty())
    usage_error({.what = "this command calls no function",
                 .where = "--policy",
                 .found = scores,
                 .expected = "a preset; replay, sweep and explain take functions"});
  std::string name;  // of a folder: as python/kvsim/scoring.py writes it
  for (const char c : scores.substr(kFunction.size()))
    name += c == '/' ? "%2F" : c == '%' ? "%25" : std::string(1, c);
  const std::filesystem::path file = std::filesystem::path(trace).stem().string() + ".h5";
  return (std::filesystem::path(scores_folder) / name / file).string();
}

std::string described_function(const std::string& file) {
  const h5::InputFile opened(file, "file of scores");
  if (!opened.exists("function")) return "";
  const auto dataset = opened.dataset("function");
  dataset.expect_shape({1}, "[1]");
  return dataset.read_text().front();
}

Table<double> read_scores(const std::string& path, int layer, int64_t owners, int64_t entries) {
  const h5::InputFile file(path, "file of scores");
  const auto dataset = file.dataset("layers/" + std::to_string(layer) + "/score");
  if (const auto& shape = dataset.shape();
      shape.size() == 2 && shape[0] > owners && shape[0] % owners == 0 && shape[1] == entries)
    dataset.fail(
        "scores of query heads for a policy that scores KV heads", h5::shape_text(shape),
        h5::shape_text({owners, entries}) + ", or granularity=query in the record (policies.md 2)");
  dataset.expect_shape({owners, entries}, "[heads, n]");
  const std::vector<double> values = dataset.read_doubles();
  Table<double> scores(owners, entries);
  for (size_t i = 0; i < values.size(); ++i)
    if (!std::isfinite(values[i]))
      dataset.fail("not a finite number",
                   (std::isnan(values[i]) ? "NaN at [" : "infinity at [") +
                       std::to_string(static_cast<int64_t>(i) / entries) + ", " +
                       std::to_string(static_cast<int64_t>(i) % entries) + "]",
                   "finite numbers");
  scores.values() = values;
  return scores;
}

Table<double> read_table(const std::string& path, int64_t rows, int64_t columns) {
  std::ifstream file = open_text(path);
  Table<double> table(rows, columns);
  int64_t row = 0;
  std::string line;
  for (int64_t number = 1; std::getline(file, line); ++number) {
    std::istringstream words(line.substr(0, line.find('#')));
    const std::string where = path + ": line " + std::to_string(number);
    std::string word;
    int64_t column = 0;
    for (; words >> word; ++column)
      if (row < rows && column < columns) table(row, column) = parse_number(word, where);
    if (column == 0) continue;
    if (column != columns)
      bad_data({.what = "wrong number of columns",
                .where = where,
                .found = std::to_string(column),
                .expected = std::to_string(columns)});
    ++row;
  }
  if (file.bad()) bad_data({.what = "cannot be read", .where = path});
  if (row != rows)
    bad_data({.what = "wrong number of lines",
              .where = path,
              .found = std::to_string(row),
              .expected = std::to_string(rows) + ", one per layer of the model"});
  return table;
}

}  // namespace kvsim
