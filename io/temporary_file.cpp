#include "io/temporary_file.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>

namespace kvsim {
namespace {

namespace fs = std::filesystem;

constexpr const char* kExtension = ".part";

/// The handler may call nothing that allocates or locks, so names lie in a fixed table.
constexpr size_t kSlots = 64;
constexpr size_t kLongestPath = 4096;
enum State : int { kFree, kFilling, kUsed };
struct Slot {
  std::atomic<int> state{kFree};
  char path[kLongestPath];
};
std::array<Slot, kSlots> slots;
std::atomic<int> counter{0};

/// Processes of two machines, or of two containers, may have one id and one folder.
std::string own_number() {
  static const auto drawn = std::random_device()();
  return std::to_string(getpid()) + "-" + std::to_string(drawn) + "-" + std::to_string(counter++);
}

int take_slot(const std::string& path) {
  for (size_t s = 0; s < kSlots; ++s) {
    int expected = kFree;
    if (!slots[s].state.compare_exchange_strong(expected, kFilling)) continue;
    std::memcpy(slots[s].path, path.c_str(), path.size() + 1);
    slots[s].state = kUsed;
    return static_cast<int>(s);
  }
  return -1;
}

void release_slot(int slot) {
  if (slot >= 0) slots[slot].state = kFree;
}

bool reaches_disk(const std::string& path, int flags) {
  const int file = open(path.c_str(), flags | O_CLOEXEC);
  if (file < 0) return false;
  const int status = fsync(file);
  const int fault = errno;
  close(file);
  errno = fault;
  return status == 0 || fault == EINVAL;  // EINVAL: nothing that could be kept, e.g. a pipe
}

void say_on_signal(const char* text) {
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, text, std::strlen(text));
}

std::atomic<const char*> hint_on_signal{nullptr};

extern "C" void end_on_signal(int) {
  remove_temporary_files();
  say_on_signal("\nkvsim: interrupted");
  if (const char* hint = hint_on_signal) {
    say_on_signal("; ");
    say_on_signal(hint);
  }
  say_on_signal("\n");
  _exit(130);
}

}  // namespace

TemporaryFile::TemporaryFile(std::string target) : target_(std::move(target)) {
  const fs::path place(target_);
  const std::string name = "." + place.filename().string() + "." + own_number() + kExtension;
  path_ = (place.parent_path() / name).string();
  if (path_.size() >= kLongestPath) usage_error({"the path is too long", target_});
  slot_ = take_slot(path_);
}

TemporaryFile::~TemporaryFile() {
  if (!path_.empty()) unlink(path_.c_str());
  release_slot(slot_);
}

void TemporaryFile::commit(bool flush) {
  // A name must never reach the disk before the bytes do; a full disk may show only here.
  if ((flush && !reaches_disk(path_, O_RDONLY)) || std::rename(path_.c_str(), target_.c_str()) != 0)
    throw Error(Fault::failure, {"cannot be written", target_, std::strerror(errno)});
  const fs::path folder = fs::path(target_).parent_path();
  if (flush) reaches_disk(folder.empty() ? "." : folder.string(), O_RDONLY | O_DIRECTORY);
  path_.clear();
  release_slot(slot_);
  slot_ = -1;
}

void write_file(const std::string& text, const std::string& target, bool flush) {
  TemporaryFile file(target);
  std::ofstream out(file.path(), std::ios::binary);
  out << text;
  out.close();
  if (!out) throw Error(Fault::failure, {"cannot be written", target});
  file.commit(flush);
}

void check_target(const std::string& target, bool overwrite,
                  const std::vector<std::string>& inputs) {
  std::error_code fault;
  if (target.empty() || fs::path(target).filename().empty())
    usage_error({"no file name", target, "", "a file to write"});
  const fs::path folder = fs::path(target).parent_path();
  if (!folder.empty() && !fs::is_directory(folder, fault))
    usage_error({"the folder to write to does not exist", folder.string()});
  if (access(folder.empty() ? "." : folder.c_str(), W_OK) != 0)
    usage_error({"the folder to write to is not writable", folder.string()});
  const fs::file_status status = fs::symlink_status(target, fault);
  if (status.type() == fs::file_type::not_found) return;
  for (const std::string& input : inputs)
    if (fs::equivalent(target, input, fault) && !fault)
      usage_error({"an input is never replaced", target});
  if (fs::is_directory(status))
    usage_error({"a folder stands where a file is to be written; only regular files are "
                 "replaced",
                 target, "", "the name of a file, e.g. " + (fs::path(target) / "NAME").string()});
  if (!fs::is_regular_file(status)) usage_error({"only regular files are replaced", target});
  if (!overwrite)
    usage_error({.what = "the file exists", .where = target, .hint = "--overwrite replaces it"});
}

void make_folder(const std::string& folder) {
  std::error_code fault;
  fs::create_directories(folder, fault);
  if (!fs::is_directory(folder))
    usage_error({"the folder cannot be made", folder, fault.message()});
}

void remove_abandoned(const std::string& folder) {
  std::error_code fault;
  const auto now = fs::file_time_type::clock::now();
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, fault)) {
    if (entry.path().extension() != kExtension) continue;
    const auto written = entry.last_write_time(fault);
    if (!fault && now - written > std::chrono::hours(1)) fs::remove(entry.path(), fault);
  }
}

void remove_temporary_files() {
  for (Slot& slot : slots)
    if (slot.state == kUsed) unlink(slot.path);
}

void hint_when_interrupted(const char* hint) { hint_on_signal = hint; }

void remove_temporary_files_on_signals() {
  struct sigaction action {};
  action.sa_handler = end_on_signal;
  sigfillset(&action.sa_mask);
  signal(SIGXFSZ, SIG_IGN);  // a file that may grow no further is an error of the write
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

}  // namespace kvsim
