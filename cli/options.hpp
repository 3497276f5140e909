#pragma once
#include <boost/program_options.hpp>

#include "io/paper_table.hpp"
#include "sim/backend/backend.hpp"
#include "sim/policy/record.hpp"

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

namespace po = boost::program_options;
using Values = po::variables_map;

/// An option as `--help` prints it. One without a meaning is the option of that name in
/// options.cpp, which means the same in every command.
struct Option {
  std::string name;        ///< "layers", or with its letter "out,o"
  std::string value = {};  ///< what stands for its value, "LIST"; empty: a flag
  std::string meaning = {};
  bool many = false;  ///< may be given several times
};
void add_options(po::options_description& to, const std::vector<Option>& options);
/// Meaning of --policy of a command that calls no functions.
inline constexpr const char* kRecords =
    "PRESET[:VARIANT][,key=value]..., repeatable; `kvsim policies` lists them";

bool has(const Values& values, const std::string& name);
std::string text(const Values& values, const std::string& name);  ///< "" when not given
std::vector<std::string> texts(const Values& values,
                               const std::string& name);  ///< of a repeatable option
/// A number of an option; `otherwise` when not given.
int64_t count_of(const Values& values, const std::string& name, int64_t otherwise, int64_t least,
                 int64_t most);
double real_of(const Values& values, const std::string& name, double otherwise, double least,
               double most);
uint64_t seed(const Values& values);

/// The form of --table; a form to paste goes with no --json.
TableForm table_form(const Values& values);
TableForm table_form(const std::string& name, const std::string& where);

/// The backend of --backend; a name that this build does not have is a usage error.
std::unique_ptr<Backend> chosen_backend(const Values& values);

/// Layers of `info` chosen by --layers, ascending; all without the option. A layer that the trace
/// does not have is bad data.
std::vector<int> chosen_layers(const Values& values, const TraceInfo& info);
/// Those of all --policy options, and of all --budget options, ranges expanded, in typed order;
/// `otherwise` without any.
std::vector<Record> records_of(const Values& values,
                               const std::vector<std::string>& otherwise = {});
std::vector<Budget> budgets_of(const Values& values,
                               const std::vector<std::string>& otherwise = {});

}  // namespace kvsim::cli
