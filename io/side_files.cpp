#include "io/side_files.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>
#include <xxhash.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "io/hdf5.hpp"
#include "sim/core/decimal.hpp"

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

/// Columns of a tidy table after policy, budget, layer, metric and value; and those that only
/// tables of results with such measures have.
constexpr const char* kFurther[] = {"head", "kv_head", "span"};
constexpr const char* kOfMeasures[] = {"estimator", "share", "indicator"};

std::vector<std::string> further_columns(const std::vector<TableSource>& sources) {
  std::vector<std::string> columns(std::begin(kFurther), std::end(kFurther));
  for (const char* dim : kOfMeasures)
    for (const TableSource& source : sources)
      if (source.dataset->has_dimension(dim) && !contains(columns, dim)) columns.emplace_back(dim);
  return columns;
}

bool is_summary(const Variable& variable) {
  if (variable.type() != VariableType::float64 || variable.dims.size() < 2) return false;
  return std::ranges::all_of(variable.dims, [](const std::string& dim) {
    const auto is = [&](const char* known) { return dim == known; };
    return is("policy") || is("budget") || is("layer") || std::ranges::any_of(kFurther, is) ||
           std::ranges::any_of(kOfMeasures, is);
  });
}

/// Calls row(variable, indices of its dimensions, value) for every summary.
using RowVisitor = std::function<void(const Variable&, const std::vector<int64_t>&, double)>;
void for_rows(const Dataset& dataset, const RowVisitor& row) {
  for (const Variable& variable : dataset.variables()) {
    if (!is_summary(variable)) continue;
    std::vector<int64_t> index(variable.dims.size(), 0);
    for (const double value : std::get<std::vector<double>>(variable.values)) {
      row(variable, index, value);
      for (size_t axis = index.size(); axis-- > 0;) {
        if (++index[axis] < dataset.size(variable.dims[axis])) break;
        index[axis] = 0;
      }
    }
  }
}

std::string number(double value) { return std::isnan(value) ? "nan" : shortest(value); }

std::string label_of(const Dataset& dataset, const Variable& variable,
                     const std::vector<int64_t>& index, const std::string& dim) {
  const auto found = std::find(variable.dims.begin(), variable.dims.end(), dim);
  if (found == variable.dims.end()) return "";
  return dataset.at(dim).label(index[found - variable.dims.begin()]);
}

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
    bad_data({errno == ENOENT ? "no such file" : std::strerror(errno), path});
  if (!S_ISREG(status.st_mode)) bad_data({"not a regular file", path});
  errno = 0;
  std::ifstream file(path);
  if (!file) bad_data({errno != 0 ? std::strerror(errno) : "cannot be read", path});
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
    bad_data({"not a number", where, shown(word), "a finite number"});
  return number->value();
}

std::string hex(XXH128_hash_t hash) {
  XXH128_canonical_t bytes;
  XXH128_canonicalFromHash(&bytes, hash);
  return fmt::format("{:02x}", fmt::join(bytes.digest, ""));
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

std::string tidy_csv(const std::vector<TableSource>& sources) {
  const std::vector<std::string> further = further_columns(sources);
  std::vector<std::string> head = {"policy", "budget", "layer", "metric", "value"};
  head.insert(head.end(), further.begin(), further.end());
  const bool several = sources.size() > 1;
  if (several) head.emplace_back("trace");
  std::string text = csv_line(head);
  for (const auto& [trace, dataset] : sources)
    for_rows(*dataset,
             [&](const Variable& variable, const std::vector<int64_t>& index, double value) {
      const auto cell = [&](const std::string& dim) {
        return label_of(*dataset, variable, index, dim);
      };
      std::vector<std::string> row = {cell("policy"), cell("budget"), cell("layer"), variable.name,
                                      number(value)};
      std::ranges::transform(further, std::back_inserter(row), cell);
      if (several) row.push_back(trace);
      text += csv_line(row);
    });
  return text;
}

std::string tidy_json(const std::vector<TableSource>& sources) {
  std::string text = "[";
  for (const auto& [trace, dataset] : sources)
    for_rows(*dataset,
             [&](const Variable& variable, const std::vector<int64_t>& index, double value) {
      nlohmann::ordered_json row;
      for (size_t axis = 0; axis < index.size(); ++axis) {
        const std::string& dim = variable.dims[axis];
        const std::string name = dataset->at(dim).label(index[axis]);
        switch (dataset->at(dim).type()) {
          case VariableType::text: row[dim] = name; break;
          case VariableType::float64: row[dim] = dataset->row(dim, {index[axis]})[0]; break;
          default: row[dim] = std::stoll(name);
        }
      }
      row["metric"] = variable.name;
      row["value"] = std::isfinite(value) ? nlohmann::ordered_json(value) : nullptr;
      if (sources.size() > 1) row["trace"] = trace;
      text += (text.size() > 1 ? ",\n " : "\n ") + row.dump();
    });
  return text + "\n]\n";
}

void set_scores_folder(const std::string& folder) { scores_folder = folder; }

bool is_function(const std::string& scores) { return scores.starts_with(kFunction); }

std::string function_file(const std::string& function) {
  return function.substr(kFunction.size(), function.rfind(':') - kFunction.size());
}

std::string scores_file(const std::string& scores, const std::string& trace) {
  if (!is_function(scores)) return scores;
  if (scores_folder.empty())
    usage_error({"this command calls no function", "--policy", scores,
                 "a preset; replay, sweep and explain take functions"});
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
  for (int64_t i = 0; i < std::ssize(values); ++i)
    if (!std::isfinite(values[i]))
      dataset.fail("not a finite number",
                   (std::isnan(values[i]) ? "NaN at [" : "infinity at [") +
                       std::to_string(i / entries) + ", " + std::to_string(i % entries) + "]",
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
      bad_data({"wrong number of columns", where, std::to_string(column), std::to_string(columns)});
    ++row;
  }
  if (file.bad()) bad_data({"cannot be read", path});
  if (row != rows)
    bad_data({"wrong number of lines", path, std::to_string(row),
              std::to_string(rows) + ", one per layer of the model"});
  return table;
}

std::string file_digest(const std::string& path) {
  const auto close = [](std::FILE* f) { std::fclose(f); };
  const std::unique_ptr<std::FILE, decltype(close)> file(std::fopen(path.c_str(), "rb"), close);
  if (!file) bad_data({std::strerror(errno), path});
  const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state(XXH3_createState(),
                                                                       &XXH3_freeState);
  if (!state) throw Error(Fault::failure, {"out of memory", path});
  XXH3_128bits_reset(state.get());
  std::vector<char> buffer(size_t{1} << 17);  // fits the second-level cache
  while (const size_t got = std::fread(buffer.data(), 1, buffer.size(), file.get()))
    XXH3_128bits_update(state.get(), buffer.data(), got);
  if (std::ferror(file.get()) != 0) bad_data({"read error", path});
  return "xxh3-128:" + hex(XXH3_128bits_digest(state.get()));
}

std::string text_digest(std::string_view text) {
  return hex(XXH3_128bits(text.data(), text.size()));
}

}  // namespace kvsim
