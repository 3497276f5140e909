#include "cli/command.hpp"

#include <boost/algorithm/string.hpp>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <new>

#include "cli/terminal.hpp"
#include "kvsim_version.hpp"

namespace kvsim::cli {
namespace {

std::vector<Command>& table() {
  static std::vector<Command> commands;
  return commands;
}

std::vector<std::string> typed;
std::string typed_line;

std::string shell_quoted(const std::string& word) {
  const char* plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=,./:@%";
  if (!word.empty() && word.find_first_not_of(plain) == std::string::npos) return word;
  return "'" + boost::replace_all_copy(word, "'", "'\\''") + "'";
}

std::string usage_line(const Command& command) {
  std::string line = "Usage: kvsim " + command.name;
  for (const Argument& argument : command.arguments) {
    const std::string name = boost::to_upper_copy(argument.name) + (argument.many ? "..." : "");
    line += argument.required ? " " + name : " [" + name + "]";
  }
  return line + " [options]";
}

void print_version() {
  std::printf("kvsim %s (commit %s, %s)\n", KVSIM_VERSION, KVSIM_GIT_COMMIT, KVSIM_BUILD);
}

void print_program_help(std::FILE* stream) {
  std::fprintf(stream,
               "Usage: kvsim COMMAND [options]\n\n"
               "If this KV cache had been compressed this way, what would each later token have "
               "lost?\n\nCommands:\n");
  std::map<std::string, std::string> summaries = package_commands();
  for (const Command& command : commands()) summaries[command.name] = command.summary;
  for (const auto& [name, summary] : summaries)
    if (!summary.empty()) std::fprintf(stream, "  %-11s %s\n", name.c_str(), summary.c_str());
  std::fprintf(stream, "\n`kvsim help COMMAND` explains a command and shows two examples; "
                       "`kvsim --version` prints the version.\n");
}

void print_command_help(const Command& command, const po::options_description& options) {
  std::ostringstream text;
  text << usage_line(command) << "\n\n" << command.summary << "\n";
  if (!command.description.empty()) text << "\n" << command.description << "\n";
  if (!command.arguments.empty()) text << "\nArguments:\n";
  for (const Argument& argument : command.arguments)
    text << "  " << boost::to_upper_copy(argument.name) << "  " << argument.meaning << "\n";
  text << "\n" << options << "\nExamples:\n";
  for (const std::string& example : command.examples) text << "  " << example << "\n";
  std::fputs(text.str().c_str(), stdout);
}

/// Dashes are in every name, so they make none alike.
std::string option_meant(const std::string& unknown, const po::options_description& options) {
  std::vector<std::string> names;
  for (const auto& option : options.options()) names.push_back(option->long_name());
  const auto near = nearest_names(
      unknown.substr(std::min(unknown.find_first_not_of('-'), unknown.size())), names, 1);
  return near.empty() ? "" : "did you mean --" + near[0] + "?";
}

/// Boost's complaints in the program's own form.
[[noreturn]] void option_error(const Command& command, const po::error& error,
                               const po::options_description& options) {
  const std::string hint = "kvsim " + command.name + " --help lists the options";
  if (const auto* unknown = dynamic_cast<const po::unknown_option*>(&error)) {
    const std::string name = unknown->get_option_name();
    const std::string near = option_meant(name, options);
    usage_error({.what = "unknown option",
                 .where = command.name,
                 .found = name,
                 .hint = near.empty() ? hint : near});
  }
  if (dynamic_cast<const po::too_many_positional_options_error*>(&error) != nullptr)
    usage_error({"too many arguments", command.name, "", usage_line(command).substr(7)});
  usage_error({.what = error.what(), .where = command.name, .hint = hint});
}

/// The declared positional arguments as options that --help does not list among the options.
po::options_description argument_options(const Command& command) {
  po::options_description hidden;
  for (const Argument& argument : command.arguments)
    add_options(hidden, {{argument.name, boost::to_upper_copy(argument.name), argument.meaning,
                          argument.many}});
  return hidden;
}

bool names_an_option(const std::string& word, const po::options_description& options) {
  // Gives "-o" for an option with a letter, for one without it the long name without dashes.
  const auto style = po::command_line_style::allow_dash_for_short;
  return word.starts_with('-') && std::ranges::any_of(options.options(), [&](const auto& option) {
           return word == option->canonical_display_name(style) ||
                  word.substr(0, word.find('=')) == "--" + option->long_name();
         });
}

/// An option must not take the next one for its value, as `-o --overwrite` would.
void check_values(const std::vector<po::option>& given, const po::options_description& options) {
  for (const po::option& option : given) {
    const std::vector<std::string>& words = option.original_tokens;
    if (option.position_key >= 0) continue;
    if (words.size() > 1 && names_an_option(words[1], options))
      usage_error({"its value is missing", words[0], words[1]});
    if (contains(option.value, "")) usage_error({"its value is empty", "--" + option.string_key});
  }
}

Values parse(const Command& command, const std::vector<std::string>& words,
             const po::options_description& visible) {
  po::options_description all;
  all.add(visible).add(argument_options(command));
  po::positional_options_description positions;
  for (const Argument& argument : command.arguments)
    positions.add(argument.name.c_str(), argument.many ? -1 : 1);
  namespace style = po::command_line_style;
  Values values;
  try {
    const auto parsed = po::command_line_parser(words)
                            .options(all)
                            .positional(positions)
                            .style(style::unix_style & ~style::allow_guessing)
                            .run();
    check_values(parsed.options, visible);
    po::store(parsed, values);
    po::notify(values);
  } catch (const po::error& error) {
    option_error(command, error, visible);
  }
  return values;
}

void apply_general_options(const Values& values) {
  if (has(values, "quiet") && has(values, "verbose")) usage_error({"-q and -v exclude each other"});
  set_verbosity(has(values, "quiet")     ? Verbosity::quiet
                : has(values, "verbose") ? Verbosity::verbose
                                         : Verbosity::normal);
  const std::string progress = has(values, "progress") ? text(values, "progress") : "auto";
  if (progress != "auto" && progress != "json")
    usage_error({"unknown value", "--progress", progress, "auto or json"});
  if (progress == "json") report_progress_as_json();
  if (has(values, "threads"))
    set_threads(static_cast<int>(parse_count(text(values, "threads"), "--threads", 1, 4096)));
}

/// data/... means what came with the program where this folder has no such file; not as a target.
std::vector<std::string> with_shipped_files(std::vector<std::string> words) {
  for (size_t i = 0; i < words.size(); ++i)
    if (i == 0 || (words[i - 1] != "-o" && words[i - 1] != "--out")) words[i] = shipped(words[i]);
  return words;
}

int run_command(const Command& command, const std::vector<std::string>& words) {
  po::options_description options("Options", 100, 60);
  add_options(options, command.options);
  add_options(options,
              {{"threads"}, {"progress"}, {"quiet,q"}, {"verbose,v"}, {"help,h"}, {"version"}});
  const Values values = parse(command, words, options);
  if (has(values, "help")) {
    print_command_help(command, options);
    return kDone;
  }
  if (has(values, "version")) {
    print_version();
    return kDone;
  }
  for (const Argument& argument : command.arguments)
    if (argument.required && !has(values, argument.name))
      usage_error({"missing " + boost::to_upper_copy(argument.name), command.name, "",
                   usage_line(command).substr(7)});
  apply_general_options(values);
  return command.run(values);
}

int dispatch(const std::vector<std::string>& words) {
  if (words.empty()) {
    print_program_help(stderr);
    return kUsage;
  }
  const std::string& name = words[0];
  if (name == "--version") {
    print_version();
    return kDone;
  }
  const bool help = name == "--help" || name == "-h" || name == "help";
  if (help && words.size() == 2 && !words[1].starts_with('-'))
    return dispatch({words[1], "--help"});
  if (help) {
    print_program_help(stdout);
    return kDone;
  }
  std::vector<std::string> names;
  for (const Command& command : commands()) {
    if (command.name == name)
      return run_command(command, with_shipped_files({words.begin() + 1, words.end()}));
    names.push_back(command.name);
  }
  for (const auto& [handed_over, summary] : package_commands()) {
    if (handed_over == name) hand_over(words);
    names.push_back(handed_over);
  }
  const bool option = name.starts_with('-');
  const std::string near = did_you_mean(name, names);
  usage_error({.what = option ? "unknown option" : "unknown command",
               .found = name,
               .expected = option ? "a command first" : "",
               .hint = near.empty() ? "kvsim --help lists the commands" : near});
}

constexpr const char* kNotWritten = "standard output: cannot be written";

/// Results that could not be written are no success.
int flushed(int code) {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0 && std::cout.flush()) return code;
  print_error(kNotWritten);
  return code == kDone ? kFailed : code;
}

}  // namespace

bool register_command(Command command) {
  for (const Command& other : table()) {
    if (other.name != command.name) continue;
    std::fprintf(stderr, "command %s is registered twice\n", command.name.c_str());
    std::abort();
  }
  const auto later = [](const Command& a, const Command& b) { return a.name < b.name; };
  table().insert(std::upper_bound(table().begin(), table().end(), command, later), command);
  return true;
}

const std::vector<Command>& commands() { return table(); }

const std::string& command_line() { return typed_line; }

const std::vector<std::string>& typed_words() { return typed; }

int run_command_line(int argc, const char* const* argv) {
  typed.assign(argv + std::min(argc, 1), argv + argc);
  typed_line = "kvsim";
  for (const std::string& word : typed)  // --scores=FOLDER is the package's own
    if (!word.starts_with("--scores=")) typed_line += " " + shell_quoted(word);
  try {
    return flushed(dispatch(typed));
  } catch (const Error& error) {
    print_error(error.what());
    return static_cast<int>(error.fault());
  } catch (const std::bad_alloc&) {
    print_error("out of memory");
  } catch (const std::exception& error) {
    print_error(std::ferror(stdout) != 0 ? kNotWritten : error.what());
  }
  return kFailed;
}

}  // namespace kvsim::cli
