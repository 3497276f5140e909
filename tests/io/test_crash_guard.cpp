#include <signal.h>

#include <catch2/catch.hpp>

#include "io/crash_guard.hpp"
#include "tests/io/trace_fixture.hpp"

using namespace kvsim;
using namespace kvsim::test;

TEST_CASE("a crash inside the HDF5 library is a damaged file: one line, status 3", "[io]") {
  const TemporaryFolder folder;
  const int number = GENERATE(SIGSEGV, SIGABRT, SIGFPE);
  const int status = status_of(folder / "err", [number] {
    const std::string path = "bad\x1b.h5";
    const ReadingGuard guard(path);
    raise(number);
  });
  CHECK(status == 3);
  CHECK(read_bytes(folder / "err") ==
        "kvsim: bad.h5: the file is damaged: the HDF5 library crashed while reading it\n");
}

TEST_CASE("a crash anywhere else stays a crash", "[io]") {
  const TemporaryFolder folder;
  const int number = GENERATE(SIGSEGV, SIGABRT);
  const int status = status_of(folder / "err", [number] {
    const std::string path = "read before.h5";
    { const ReadingGuard guard(path); }
    raise(number);
    raise(number);  // a real fault happens again when its instruction is run again
  });
  CHECK(status == 128 + number);
  CHECK(read_bytes(folder / "err").empty());
}
