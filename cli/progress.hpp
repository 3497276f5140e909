#pragma once
#include <chrono>
#include <string>

namespace kvsim::cli {

/// From now on progress is a line of JSON on standard error, ten times a second at most and with
/// -q, too: {"progress": 0.25, "what": "..."}. For programs that show it themselves.
void report_progress_as_json();

/// How far a long command is, on standard error: a bar on a terminal, elsewhere a line now and
/// then, nothing with -q. The bar is wiped when the object goes.
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
  std::chrono::steady_clock::time_point next_;
};

}  // namespace kvsim::cli
