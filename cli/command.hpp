#pragma once
#include "cli/options.hpp"

namespace kvsim::cli {

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
/// from cli/options.hpp. `run` returns an exit code; errors are thrown as kvsim::Error.
struct Command {
  std::string name;
  std::string summary;                   ///< one line for the list of commands
  std::vector<Argument> arguments = {};  ///< positional; only the last may be `many`
  std::string description = {};  ///< paragraphs of --help below the usage line; may be empty
  std::vector<Option> (*options)() = nullptr;
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

}  // namespace kvsim::cli

namespace kvsim {
using cli::run_command_line;
}
