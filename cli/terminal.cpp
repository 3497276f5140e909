#include "cli/terminal.hpp"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdlib>
#include <string_view>

namespace kvsim::cli {
namespace {

Verbosity current = Verbosity::normal;

void print_line(const std::string& text) {
  std::fflush(stdout);  // keeps the order when both go to one terminal
  std::fprintf(stderr, "kvsim: %s\n", printable(text).c_str());
}

}  // namespace

void set_verbosity(Verbosity verbosity) { current = verbosity; }
Verbosity verbosity() { return current; }

void note(const std::string& text) {
  if (current != Verbosity::quiet) print_line(text);
}

void detail(const std::string& text) {
  if (current == Verbosity::verbose) print_line(text);
}

void print_error(const std::string& text) { print_line(text); }

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

std::string printable(const std::string& text) {
  std::string result;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= ' ' && byte != 0x7F) {
      result += c;
      continue;
    }
    constexpr char kHex[] = "0123456789abcdef";
    result += "\\x";
    result += kHex[byte >> 4];
    result += kHex[byte & 15];
  }
  return result;
}

}  // namespace kvsim::cli
