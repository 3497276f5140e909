#include <signal.h>
#include <time.h>

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

TEST_CASE("a library that finds no end is a damaged file, too", "[io][watch]") {
  const TemporaryFolder folder;
  const auto works_for = [](double seconds) {
    const clock_t begin = clock();
    while (static_cast<double>(clock() - begin) < seconds * CLOCKS_PER_SEC) {
    }
  };
  const int status = status_of(folder / "err", [&] {
    const std::string path = "round.h5";
    { const ReadingGuard guard(path, 0x1p30); }
    works_for(0.01);
    const ReadingGuard guard(path);
    works_for(1e6);
  });
  CHECK(status == 3);
  CHECK(read_bytes(folder / "err") ==
        "kvsim: round.h5: the file is damaged: the HDF5 library finds no end in it\n");
  // What is not the library's may take as long as it likes, and so may much data.
  CHECK(status_of(folder / "err", [&] {
          const std::string path = "long.h5";
          { const ReadingGuard guard(path); }
          works_for(2.1);
          const ReadingGuard guard(path, 0x1p30);
          works_for(2.1);
        }) == 0);
}
