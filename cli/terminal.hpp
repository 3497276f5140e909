#pragma once
#include <chrono>
#include <cstdio>

#include "sim/core/prelude.hpp"

namespace kvsim::cli {

/// How much is said on standard error; set by the framework from -q and -v.
enum class Verbosity { quiet, normal, verbose };
void set_verbosity(Verbosity verbosity);
Verbosity verbosity();

/// "kvsim: TEXT" on standard error: a note unless -q, a detail only with -v, an error always.
void note(const std::string& text);
void detail(const std::string& text);
void print_error(const std::string& text);

bool is_terminal(std::FILE* stream);
/// Colour wanted on this stream? A terminal, not "dumb", and NO_COLOR not set.
bool color_enabled(std::FILE* stream);
/// Columns of the terminal; 80 when it is none.
int terminal_width(std::FILE* stream);

/// Control characters (from files or arguments) and bytes that are not UTF-8 shown as \xNN, what
/// reorders a line (U+202E and its kin) as \uNNNN, so that no text can drive the terminal.
std::string printable(const std::string& text);
/// Does so for every line of a text that ends in a new line: the line ends are ours.
std::string printable_lines(const std::string& text);
/// Makes a JSON document safe, which stays one: in its strings these characters are escaped.
std::string printable_json(const std::string& document);

/// "1 layer", "2 layers".
std::string counted(int64_t count, const std::string& noun);
/// "3 ms", "2.1 s", "12 min", "3.4 h".
std::string duration(double seconds);

/// From now on progress is a line of JSON on standard error, ten times a second at most and with
/// -q, too: {"progress": 0.25, "what": "..."}. For programs that show it themselves.
void report_progress_as_json();

/// How far a long command is, on standard error: a bar on a terminal, elsewhere a line now and
/// then, nothing with -q; with an estimate of the time left. The bar is wiped when the object goes.
class Progress {
 public:
  /// `line_every`: between lines where there is no terminal.
  explicit Progress(std::string title, std::chrono::seconds line_every = std::chrono::seconds(30));
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// `done` in [0, 1]; `what` is being worked on.
  void update(double done, const std::string& what);
  /// Takes the bar away, so that another line can be printed; the next update brings it back.
  void clear();

 private:
  void draw(double done, const std::string& what);

  std::string title_;
  std::chrono::seconds line_every_;
  bool json_ = false;
  bool bar_ = false;
  bool drawn_ = false;
  std::chrono::steady_clock::time_point begin_;
  std::chrono::steady_clock::time_point next_;
};

}  // namespace kvsim::cli
