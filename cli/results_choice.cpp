#include "cli/results_choice.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>
#include <span>
#include <string_view>

#include "cli/options.hpp"
#include "io/results_reader.hpp"
#include "run/study/equal_bytes.hpp"
#include "run/study/known_results.hpp"
#include "sim/core/error.hpp"
#include "sim/policy/record.hpp"

namespace kvsim::cli {
namespace {

namespace fs = std::filesystem;

constexpr size_t kNamesShown = 40;
constexpr size_t kNumbersShown = 8;

std::string in_text(const std::string& value) { return value; }
std::string in_text(double value) { return std::to_string(value); }
template <class T>
std::string in_text(T value) {
  return std::to_string(value);
}

std::vector<std::string> names_of(const Variable& variable) {
  return std::visit(
      [](const auto& known) {
    std::vector<std::string> names;
    for (const auto& value : known) names.push_back(in_text(value));
    return names;
      },
      variable.values);
}

constexpr std::string_view kHdf5 = "\x89HDF\r\n\x1A\n";

struct Signature {
  std::string_view bytes;
  const char* meaning;
};
constexpr Signature kSignatures[] = {
    {"CDF", "an older netCDF file"}, {"\x89PNG", "a PNG image"},
    {"%PDF", "a PDF document"},      {"PK\x03\x04", "a ZIP archive"},
    {"\x1F\x8B", "gzip data"},       {"GGUF", "a GGUF model"},
    {"<", "an HTML or XML page"},    {"{", "JSON"}};

/// Names in words what a file is that begins with these bytes.
std::string kind_of(std::string_view head) {
  if (head.empty()) return "an empty file";
  for (const Signature& known : kSignatures)
    if (head.starts_with(known.bytes)) return known.meaning;
  const bool text = std::ranges::all_of(
      head, [](unsigned char c) { return c >= ' ' || c == '\n' || c == '\r' || c == '\t'; });
  if (!text) return "other binary data";
  return "text that begins with \"" + std::string(head.substr(0, head.find_first_of("\r\n"))) +
         "\"";
}

/// The first bytes of a regular file that can be read.
std::optional<std::string> head_of(const std::string& path) {
  std::error_code fault;
  if (!fs::is_regular_file(path, fault)) return std::nullopt;
  constexpr size_t kHead = 32;
  std::string head(kHead, '\0');
  std::ifstream file(path, std::ios::binary);
  if (!file.is_open()) return std::nullopt;
  file.read(head.data(), kHead);
  head.resize(static_cast<size_t>(file.gcount()));
  return head;
}

/// One text for all ways to type a budget (.2, 20%) or a record (`snapkv,window=064`); a text that
/// is neither, as that of a function in Python, stays.
std::string one_text(std::string_view variable, const std::string& typed) {
  try {
    if (variable == "budget_label") return Budget::parse(typed).label;
    if (variable == "policy") return Record::parse(typed).canonical();
  } catch (const Error&) {  // the caller says what is wrong with it
  }
  return typed;
}

}  // namespace

void refuse_trace(const std::string& path) {
  const std::optional<std::string> head = head_of(path);
  if (head && head->starts_with(kHdf5)) refuse_trace_as_results(path);
}

Dataset open_netcdf(const std::string& path) {
  if (const std::optional<std::string> head = head_of(path)) {  // all else the reader refuses
    if (!head->starts_with(kHdf5))
      bad_data({.what = "not a results file",
                .where = path,
                .found = kind_of(*head),
                .expected = "a netCDF-4 file written by kvsim"});
  }
  return read_results(path);
}

Dataset open_results(const std::string& path, const std::vector<const char*>& variables) {
  Dataset results = open_netcdf(path);
  check_known_results(results, path);
  for (const char* name : variables)
    if (!results.has(name)) bad_data({.what = "missing variable", .where = path, .expected = name});
  return results;
}

std::string attribute(const Dataset& results, const char* name) {
  const AttributeValue* found = results.attribute(name);
  const std::string* text = found != nullptr ? std::get_if<std::string>(found) : nullptr;
  return text != nullptr ? *text : "";
}

std::string title_of(const Dataset& results) {
  if (!results.has("layer")) return "What the model loses with the compressed caches (closed loop)";
  const std::string form = attribute(results, kEqualBytes);
  return "What later tokens lose when the cache is compressed (open-loop replay)" +
         (form.empty() ? "" : "; budgets are shares of the full cache's bytes (" + form + ")");
}

std::string choices(const Dataset& results, const char* variable) {
  const std::vector<std::string> known = names_of(results.at(variable));
  if (!std::holds_alternative<std::vector<std::string>>(results.at(variable).values) &&
      known.size() > kNumbersShown)
    return fmt::format("one of {} from {} to {}", known.size(), known.front(), known.back());
  const auto shown = std::span(known).first(std::min(known.size(), kNamesShown));
  return fmt::format("one of {}{}", fmt::join(shown, "; "),
                     shown.size() < known.size() ? "; ..." : "");
}

int64_t choice(const Values& values, const Dataset& results, const char* option,
               const char* variable) {
  if (!has(values, option)) return -1;
  const std::vector<std::string> known = names_of(results.at(variable));
  const std::string typed = text(values, option);
  auto found = std::ranges::find(known, typed);
  if (found == known.end())
    found = std::ranges::find(known, one_text(variable, typed),
                              [&](const std::string& name) { return one_text(variable, name); });
  if (found != known.end()) return found - known.begin();
  bad_data({.what = std::string("the results do not have this ") + option,
            .where = std::string("--") + option,
            .found = typed,
            .expected = choices(results, variable)});
}

std::string trace_beside(const Values& values, const Dataset& results, const std::string& path) {
  if (has(values, "trace")) return text(values, "trace");
  const std::string name = attribute(results, "trace");
  if (name.empty()) return "";
  std::error_code fault;
  const std::string known = attribute(results, kTracePath);
  if (fs::is_regular_file(known, fault)) return known;
  for (const fs::path& folder : {fs::path(path).parent_path(), fs::path("."), fs::path("data")}) {
    if (fs::is_regular_file(folder / name, fault)) return (folder / name).string();
  }
  return "";
}

}  // namespace kvsim::cli
