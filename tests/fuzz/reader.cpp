#include "tests/fuzz/reader.hpp"

#include <dlfcn.h>
#include <execinfo.h>
#include <sanitizer/common_interface_defs.h>
#include <sanitizer/lsan_interface.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "io/crash_guard.hpp"

namespace kvsim::fuzz {
namespace {

constexpr size_t kLongest = size_t{1} << 18;
constexpr int kInputs = 500;             // of one process
constexpr long kMemory = long{1} << 20;  // KiB
constexpr int kGuarded = 3;              // HDF5 crashed, and the guard answered
constexpr int kLeak = 20, kGreedy = 21, kThrown = 22;

bool in_reader = false;

/// What the sanitizers say in the process `pid`: they add its number to the name of the file.
std::string report_of(int pid) { return InputOnDisk::name(pid) + ".report"; }

}  // namespace

/// What the sanitizer finds in HDF5 itself is what the guard answers in the program, if there is
/// one. The first frame that is neither the sanitizer's nor the C library's says whose it is.
extern "C" void __asan_on_error() {
  if (!in_reader || !inside_library()) return;
  void* frames[32];
  const int count = backtrace(frames, 32);
  for (int f = 1; f < count; ++f) {
    Dl_info info;
    if (dladdr(frames[f], &info) == 0 || info.dli_fname == nullptr) continue;
    if (std::strstr(info.dli_fname, "libhdf5") != nullptr) _exit(kGuarded);
    if (std::strstr(info.dli_fname, "libasan") == nullptr &&
        std::strstr(info.dli_fname, "libc.so") == nullptr &&
        info.dli_saddr != reinterpret_cast<void*>(&__asan_on_error))
      return;
  }
}

Reader::Reader(const Target& target)
    : target_(target), input_(static_cast<uint8_t*>(mmap(nullptr, kLongest, PROT_READ | PROT_WRITE,
                                                         MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {}

Reader::~Reader() {
  if (child_ > 0) ended_well(true);
}

void Reader::run(Bytes input) {
  if (input.size() > kLongest || answers(input) || ended_well(false)) return;
  if (!answers(input)) ended_well(true);
}

bool Reader::answers(Bytes input) {
  if (child_ < 0) start();
  std::memcpy(input_, input.data(), input.size());
  const size_t size = input.size();
  char answer = 0;
  ssize_t got = -1;
  if (write(asks_, &size, sizeof size) == sizeof size) do
      got = read(answered_, &answer, 1);
    while (got < 0 && errno == EINTR);  // libFuzzer's clock
  return got == 1;
}

void Reader::start() {
  int asked[2], answers[2];
  if (pipe(asked) != 0 || pipe(answers) != 0) std::abort();
  child_ = fork();
  if (child_ == 0) {
    close(asked[1]);
    close(answers[0]);
    serve(asked[0], answers[1]);
  }
  close(asked[0]);
  close(answers[1]);
  asks_ = asked[1];
  answered_ = answers[0];
}

void Reader::serve(int asked, int answers) {
  in_reader = true;
  __sanitizer_set_report_path(report_of(getpid()).c_str());  // a command is silenced
  __sanitizer_set_death_callback(nullptr);                   // the parent knows which input it was
  report_crashes_while_reading(0.2);                         // such inputs lead to more of them
  signal(SIGALRM, SIG_DFL);                                  // libFuzzer's is the parent's
  size_t size = 0;
  for (int n = 0; n < kInputs && read(asked, &size, sizeof size) == sizeof size; ++n) {
    alarm(4);  // twice within the parent's patience
    try {
      target_.run({input_, size});
    } catch (const std::exception& error) {
      std::fprintf(stderr, "not answered: %s\n", error.what());
      _exit(kThrown);
    }
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    if (usage.ru_maxrss > kMemory) _exit(kGreedy);
    if (n + 1 < kInputs && write(answers, "", 1) != 1) break;
  }
  _exit(__lsan_do_recoverable_leak_check() == 0 ? 0 : kLeak);
}

bool Reader::ended_well(bool alone) {
  close(asks_);
  close(answered_);
  int status = 0;
  waitpid(child_, &status, 0);
  namespace fs = std::filesystem;
  for (const char* const end : {"", ".nc", ".out"}) fs::remove(InputOnDisk::name(child_) + end);
  const std::string report = report_of(child_) + "." + std::to_string(child_);
  std::ostringstream said;
  said << std::ifstream(report).rdbuf();
  fs::remove(report);
  child_ = -1;
  const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  if (code == 0 || code == kGuarded) return true;
  // HDF5 may have damaged memory with an earlier input: what is ours has a report or happens again.
  if (!alone && code != kLeak && said.str().find("ERROR: AddressSanitizer") == std::string::npos)
    return false;
  std::fputs(said.str().c_str(), stderr);
  const char* const why = code == kLeak     ? "one of the last inputs leaked"
                          : code == kGreedy ? "more than a GiB of memory"
                          : code == kThrown ? "an exception that is no answer"
                                            : "neither taken nor answered";
  std::fprintf(stderr, "the reader ended with %d: %s\n", code, why);
  std::abort();
}

}  // namespace kvsim::fuzz
