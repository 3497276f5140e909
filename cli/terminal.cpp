#include "cli/terminal.hpp"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "io/hdf5.hpp"
#include "io/paper_table.hpp"

namespace kvsim::cli {
namespace {

Verbosity current = Verbosity::normal;

/// Of a valid UTF-8 sequence.
uint32_t code_point(const std::string& text, size_t i, size_t length) {
  const auto byte = [&](size_t k) { return static_cast<unsigned char>(text[i + k]); };
  if (length == 1) return byte(0);
  uint32_t code = byte(0) & (0xFFu >> (length + 1));
  for (size_t k = 1; k < length; ++k) code = code << 6 | (byte(k) & 0x3Fu);
  return code;
}

/// Control characters of ASCII and of ISO 6429, and what reorders the text beside it.
bool drives_terminal(uint32_t code) {
  if (code < 0x20 || (code >= 0x7F && code < 0xA0)) return true;
  return code == 0x061C || code == 0x200E || code == 0x200F || (code >= 0x2028 && code <= 0x202E) ||
         (code >= 0x2066 && code <= 0x2069);
}

/// In JSON what is ASCII is escaped already, and \u is the one way to escape.
std::string safe(const std::string& text, bool json) {
  std::string result;
  for (size_t i = 0; i < text.size();) {
    const size_t length = h5::utf8_length(text, i), bytes = std::max<size_t>(length, 1);
    const uint32_t code = code_point(text, i, bytes);
    if (json ? length <= 1 || !drives_terminal(code) : length > 0 && !drives_terminal(code))
      result.append(text, i, bytes);
    else
      result += !json && code < 0x100 ? fmt::format("\\x{:02x}", code)
                                      : fmt::format("\\u{:04x}", code);
    i += bytes;
  }
  return result;
}

constexpr auto kBarEvery = std::chrono::milliseconds(100);
constexpr int kMostCells = 30;

bool as_json = false;

}  // namespace

void set_verbosity(Verbosity verbosity) { current = verbosity; }
Verbosity verbosity() { return current; }

void note(const std::string& text) {
  if (current != Verbosity::quiet) print_error(text);
}

void detail(const std::string& text) {
  if (current == Verbosity::verbose) print_error(text);
}

void print_error(const std::string& text) {
  std::fflush(stdout);  // keeps the order when both go to one terminal
  std::fprintf(stderr, "kvsim: %s\n", printable(text).c_str());
}

bool is_terminal(std::FILE* stream) { return isatty(fileno(stream)) != 0; }

bool color_enabled(std::FILE* stream) {
  const char* off = std::getenv("NO_COLOR");
  if (off != nullptr && *off != '\0') return false;
  const char* kind = std::getenv("TERM");
  return is_terminal(stream) && kind != nullptr && std::string_view(kind) != "dumb";
}

int terminal_width(std::FILE* stream) {
  winsize size{};
  if (ioctl(fileno(stream), TIOCGWINSZ, &size) == 0 && size.ws_col >= 20) return size.ws_col;
  return 80;
}

std::string printable(const std::string& text) { return safe(text, false); }
std::string printable_json(const std::string& document) { return safe(document, true); }

std::string printable_lines(const std::string& text) {
  std::string shown;
  for (const std::string& line : lines_of(text)) shown += printable(line) + "\n";
  return shown;
}

std::string counted(int64_t count, const std::string& noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

std::string duration(double seconds) {
  if (seconds < 0.1) return fmt::format("{:.0f} ms", 1000 * seconds);
  if (seconds < 100) return fmt::format("{:.1f} s", seconds);
  if (seconds < 6000) return fmt::format("{:.0f} min", seconds / 60);
  return fmt::format("{:.1f} h", seconds / 3600);
}

void report_progress_as_json() { as_json = true; }

Progress::Progress(std::string title, std::chrono::seconds line_every)
    : title_(std::move(title)), line_every_(line_every), json_(as_json),
      bar_(!as_json && is_terminal(stderr)), begin_(std::chrono::steady_clock::now()),
      next_(begin_ + (json_ || bar_ ? kBarEvery : line_every_)) {}

Progress::~Progress() { clear(); }

void Progress::clear() {
  if (!drawn_) return;
  std::fputs("\r\033[K", stderr);
  std::fflush(stderr);
  drawn_ = false;
}

void Progress::update(double done, const std::string& what) {
  if (verbosity() == Verbosity::quiet && !json_) return;
  const auto now = std::chrono::steady_clock::now();
  if (now < next_) return;
  next_ = now + (json_ || bar_ ? kBarEvery : line_every_);
  const double spent = std::chrono::duration<double>(now - begin_).count();
  const std::string left = done > 0 && done < 1
                               ? fmt::format(", {} left", duration(spent * (1 - done) / done))
                               : "";
  if (json_) {
    const nlohmann::ordered_json line = {{"progress", done}, {"what", title_ + ": " + what}};
    const auto replace = nlohmann::ordered_json::error_handler_t::replace;
    std::fprintf(stderr, "%s\n", line.dump(-1, ' ', false, replace).c_str());
  } else if (bar_) {
    draw(done, what + left);
  } else {
    note(fmt::format("{}: {:.0f} %, {}{}", title_, 100 * done, what, left));
  }
}

void Progress::draw(double done, const std::string& what) {
  const int cells = std::min(kMostCells, terminal_width(stderr) / 3);
  const int full = static_cast<int>(done * cells);
  std::string line = fmt::format("[{:#<{}}{:.<{}}] {:3.0f} %  {}", "", full, "", cells - full,
                                 100 * done, printable(title_ + ": " + what));
  const auto width = static_cast<size_t>(terminal_width(stderr) - 1);
  if (line.size() > width) line.resize(width);
  std::fprintf(stderr, "\r\033[K%s", line.c_str());
  std::fflush(stderr);
  drawn_ = true;
}

}  // namespace kvsim::cli
