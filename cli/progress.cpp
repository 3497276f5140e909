#include "cli/progress.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "cli/terminal.hpp"

namespace kvsim::cli {
namespace {

constexpr auto kBarEvery = std::chrono::milliseconds(100);
constexpr int kMostCells = 30;

bool as_json = false;

}  // namespace

void report_progress_as_json() { as_json = true; }

Progress::Progress(std::string title, std::chrono::seconds line_every)
    : title_(std::move(title)), line_every_(line_every), json_(as_json),
      bar_(!as_json && is_terminal(stderr)),
      next_(std::chrono::steady_clock::now() + (json_ || bar_ ? kBarEvery : line_every_)) {}

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
  if (json_) {
    const nlohmann::ordered_json line = {{"progress", done}, {"what", title_ + ": " + what}};
    const auto replace = nlohmann::ordered_json::error_handler_t::replace;
    std::fprintf(stderr, "%s\n", line.dump(-1, ' ', false, replace).c_str());
  } else if (bar_) {
    draw(done, what);
  } else {
    note(fmt::format("{}: {:.0f} %, {}", title_, 100 * done, what));
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
