#include "io/crash_guard.hpp"

#include <signal.h>
#include <time.h>
#include <unistd.h>

#include "io/temporary_file.hpp"

namespace kvsim {
namespace {

thread_local const char* reading = nullptr;  // path of the file HDF5 is reading; no constructor

constexpr std::array kSignals = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
std::array<struct sigaction, kSignals.size()> previous;
constexpr int kNoEnd = SIGVTALRM;
double patience_for_headers = 0;                        // s; 0: not watched
alignas(16) std::array<char, 64 * 1024> handler_stack;  // the crash may be a stack overflow

/// Only functions that are safe in a signal handler; control characters of the path are left out.
void print(const char* text) {
  char line[4096];
  size_t length = 0;
  for (; *text != '\0' && length < sizeof line; ++text)
    if (static_cast<unsigned char>(*text) >= ' ') line[length++] = *text;
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, line, length);
}

/// The address sanitizer would ask for memory before a call that does not return.
extern "C" [[gnu::no_sanitize_address]] void on_crash(int signal) {
  if (signal == kNoEnd && reading == nullptr) return;  // it came to an end just now
  remove_temporary_files();
  if (reading == nullptr) {  // not ours: the same instruction fails again, as it would have
    for (size_t s = 0; s < kSignals.size(); ++s)
      if (kSignals[s] == signal) sigaction(signal, &previous[s], nullptr);
    if (signal == SIGABRT) raise(signal);
    return;
  }
  print("kvsim: ");
  print(reading);
  print(signal == kNoEnd ? ": the file is damaged: the HDF5 library finds no end in it"
                         : ": the file is damaged: the HDF5 library crashed while reading it");
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, "\n", 1);
  _exit(3);
}

/// Counts the processor time of its thread, which a slow disk does not take.
class Watch {
 public:
  Watch() {
    sigevent event{};
    event.sigev_notify = SIGEV_THREAD_ID;
    event.sigev_signo = kNoEnd;
    event._sigev_un._tid = gettid();
    made_ = timer_create(CLOCK_THREAD_CPUTIME_ID, &event, &timer_) == 0;
  }
  ~Watch() {
    if (made_) timer_delete(timer_);
  }
  Watch(const Watch&) = delete;
  Watch& operator=(const Watch&) = delete;

  /// 0: never.
  void ring_after(double seconds) const {
    if (!made_) return;
    itimerspec time{};
    time.it_value.tv_sec = static_cast<time_t>(seconds);
    time.it_value.tv_nsec = static_cast<long>(
        (seconds - static_cast<double>(time.it_value.tv_sec)) * 1e9);
    timer_settime(timer_, 0, &time, nullptr);
  }

 private:
  timer_t timer_{};
  bool made_ = false;
};

void watch(double seconds) {
  if (patience_for_headers == 0) return;
  thread_local const Watch own;
  own.ring_after(seconds);
}

}  // namespace

ReadingGuard::ReadingGuard(const std::string& path, double bytes) : outer_(reading) {
  reading = path.c_str();
  watch(patience_for_headers + 1e-7 * bytes);
}
ReadingGuard::~ReadingGuard() {
  reading = outer_;
  watch(outer_ != nullptr ? patience_for_headers : 0);
}

bool inside_library() { return reading != nullptr; }

void report_crashes_while_reading(double patience) {
  stack_t stack{};
  stack.ss_sp = handler_stack.data();
  stack.ss_size = handler_stack.size();
  sigaltstack(&stack, nullptr);
  struct sigaction action {};
  action.sa_handler = on_crash;
  action.sa_flags = SA_ONSTACK;
  sigemptyset(&action.sa_mask);
  for (size_t s = 0; s < kSignals.size(); ++s) sigaction(kSignals[s], &action, &previous[s]);
  sigaction(kNoEnd, &action, nullptr);
  patience_for_headers = patience;
}

}  // namespace kvsim
