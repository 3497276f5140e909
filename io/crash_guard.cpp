#include "io/crash_guard.hpp"

#include <signal.h>
#include <unistd.h>

#include <array>
#include <cstring>

#include "io/temporary_file.hpp"

namespace kvsim {
namespace {

thread_local const char* reading = nullptr;  // path of the file HDF5 is reading; no constructor

constexpr std::array kSignals = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
std::array<struct sigaction, kSignals.size()> previous;
alignas(16) std::array<char, 64 * 1024> handler_stack;  // the crash may be a stack overflow

/// Only functions that are safe in a signal handler; control characters of the path are left out.
void print(const char* text) {
  char line[4096];
  size_t length = 0;
  for (; *text != '\0' && length < sizeof line; ++text)
    if (static_cast<unsigned char>(*text) >= ' ') line[length++] = *text;
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, line, length);
}

extern "C" void on_crash(int signal) {
  remove_temporary_files();
  if (reading == nullptr) {  // not ours: the same instruction fails again, as it would have
    for (size_t s = 0; s < kSignals.size(); ++s)
      if (kSignals[s] == signal) sigaction(signal, &previous[s], nullptr);
    if (signal == SIGABRT) raise(signal);
    return;
  }
  print("kvsim: ");
  print(reading);
  print(": the file is damaged: the HDF5 library crashed while reading it");
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, "\n", 1);
  _exit(3);
}

}  // namespace

ReadingGuard::ReadingGuard(const std::string& path) : outer_(reading) { reading = path.c_str(); }
ReadingGuard::~ReadingGuard() { reading = outer_; }

void report_crashes_while_reading() {
  stack_t stack{};
  stack.ss_sp = handler_stack.data();
  stack.ss_size = handler_stack.size();
  sigaltstack(&stack, nullptr);
  struct sigaction action {};
  action.sa_handler = on_crash;
  action.sa_flags = SA_ONSTACK;
  sigemptyset(&action.sa_mask);
  for (size_t s = 0; s < kSignals.size(); ++s) sigaction(kSignals[s], &action, &previous[s]);
}

}  // namespace kvsim
