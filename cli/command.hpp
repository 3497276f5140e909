#pragma once
#include <boost/program_options.hpp>

#include "analysis/measure.hpp"
#include "io/paper_table.hpp"
#include "sim/backend/backend.hpp"
#include "sim/policy/record.hpp"

namespace kvsim::cli {

// Small grammars of option values. `option` names the option in error messages.

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

/// The items of lists that were given to --NAME, in typed order, each once. One that is not `known`
/// is a usage error that tells what there is: `shown`.
std::vector<std::string> chosen_names(const std::vector<std::string>& lists,
                                      const std::string& name,
                                      const std::vector<std::string>& known,
                                      const std::vector<std::string>& shown);
/// How to measure, from what was typed.
void read_measure_options(const Values& values, StudyOptions& options);

/// Exit codes of the program; Error's faults map to 1..4.
enum ExitCode { kDone = 0, kFailed = 1, kUsage = 2, kBadData = 3, kNotVerified = 4 };

/// A positional argument. It is read as values["name"]: std::string, or a std::vector of them when
/// `many`.
struct Argument {
  std::string name;
  std::string meaning = {};
  bool required = true;
  bool many = false;
};

/// One command of the program. Adding one is adding one file in cli/ with
///
///   namespace kvsim::cli::inspect_command {
///   const bool registered = register_command({.name = "inspect", ..., .run = run});
///
/// -h, -q, -v, and --threads exist for every command; options that mean the same everywhere come
/// from cli/options.cpp. `run` returns an exit code; errors are thrown as kvsim::Error.
struct Command {
  std::string name;
  std::string summary;                   ///< one line for the list of commands
  std::vector<Argument> arguments = {};  ///< positional; only the last may be `many`
  std::string description = {};  ///< paragraphs of --help below the usage line; may be empty
  std::vector<Option> options = {};
  std::vector<std::string> examples = {};  ///< two, that work as typed from the repository's root
  int (*run)(const Values& values) = nullptr;
};

/// Puts a command in the table; a name used twice is a programmer's mistake and aborts.
bool register_command(Command command);
/// All commands, ascending by name.
const std::vector<Command>& commands();

/// The whole program: parses, runs, turns errors into one line on standard error and an exit code.
int run_command_line(int argc, const char* const* argv);

/// The line as typed, quoted where a shell needs it; for the `history` of results files.
const std::string& command_line();
/// The words as typed, behind the program's name.
const std::vector<std::string>& typed_words();

// Files that came with the program: the Python package, the sample, prompts, sweeps and searches.

/// A file by its name in the source tree, of the nearest that has it: the wheel or clone of the
/// program, what was installed with it, the tree that it was built from. Empty where none has it.
std::filesystem::path shipped_file(const std::string& name);

/// `path` as it is where it exists or does not begin with data/; else the file of that name that
/// came with the program, if there is one.
std::string shipped(const std::string& path);

// The Python package, which lies beside the program: commands that are not the program's own, and
// functions in the place of presets.

/// Its commands with their summaries: those of python/kvsim/commands.json; none without the
/// package.
std::map<std::string, std::string> package_commands();

/// This process becomes `python -m kvsim WORDS` with the Python of KVSIM_PYTHON; else with the
/// first there is of that of scripts/quickstart.sh and python3, `users` the other way round. The
/// package looks further for one that has what the command needs. Returns only by throwing.
[[noreturn]] void hand_over(std::vector<std::string> words, bool users = false);

/// Where a record names a function, `python:FILE.py:FUNCTION`: makes its scores known, which lie in
/// the folder of --scores. Without that this process becomes the package, which computes them on
/// `layers` (empty: all) of the traces, into `folder` if one is given, and runs the command again,
/// as it was `typed`.
void serve_functions(const Values& values, const std::vector<std::string>& typed,
                     const std::vector<Record>& records, const std::vector<std::string>& traces,
                     const std::vector<int>& layers, const std::string& folder = "");

}  // namespace kvsim::cli

namespace kvsim {
using cli::run_command_line;
}
