#include "cli/command.hpp"
#include "io/crash_guard.hpp"
#include "io/temporary_file.hpp"

int main(int argc, char** argv) {
  kvsim::remove_temporary_files_on_signals();
  kvsim::report_crashes_while_reading();
  return kvsim::run_command_line(argc, argv);
}
