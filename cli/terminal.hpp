#pragma once
#include <cstdint>
#include <cstdio>
#include <string>

namespace kvsim::cli {

/// How much is said on standard error; set by the framework from -q and -v.
enum class Verbosity { quiet, normal, verbose };
void set_verbosity(Verbosity verbosity);
Verbosity verbosity();

/// "kvsim: TEXT" on standard error: a note unless -q, a detail only with -v, an error always.
void note(const std::string& text);
void detail(const std::string& text);
void print_error(const std::string& text);

/// Is this stream a terminal?
bool is_terminal(std::FILE* stream);
/// Colour wanted on this stream? A terminal, not "dumb", and NO_COLOR not set.
bool color_enabled(std::FILE* stream);
/// Columns of the terminal; 80 when it is none.
int terminal_width(std::FILE* stream);

/// Control characters (from files or arguments) and bytes that are not UTF-8 shown as \xNN, what
/// reorders a line (U+202E and its kin) as \uNNNN, so that no text can drive the terminal.
std::string printable(const std::string& text);
/// The same of every line of a text that ends in a new line: the line ends are ours.
std::string printable_lines(const std::string& text);
/// Makes a JSON document safe, which stays one: in its strings these characters are escaped.
std::string printable_json(const std::string& document);

/// "1 layer", "2 layers".
std::string counted(int64_t count, const std::string& noun);

}  // namespace kvsim::cli
