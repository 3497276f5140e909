#include <catch2/catch.hpp>
#include <chrono>
#include <filesystem>

#include "io/temporary_file.hpp"
#include "tests/io/trace_fixture.hpp"

using namespace kvsim;
using namespace kvsim::test;
namespace fs = std::filesystem;

namespace {
size_t files_in(const TemporaryFolder& folder) {
  return static_cast<size_t>(std::distance(fs::directory_iterator(folder.path()), {}));
}
}  // namespace

TEST_CASE("a committed file appears under its name, an abandoned one nowhere", "[io]") {
  const TemporaryFolder folder;
  {
    TemporaryFile file(folder / "result");
    write_bytes(file.path(), "whole");
    CHECK_FALSE(fs::exists(folder / "result"));
    file.commit();
  }
  CHECK(read_bytes(folder / "result") == "whole");
  {
    const TemporaryFile file(folder / "result");
    write_bytes(file.path(), "half");
  }
  CHECK(read_bytes(folder / "result") == "whole");
  CHECK(files_in(folder) == 1);
}

TEST_CASE("what a killed program left is removed, what may be in work stays", "[io]") {
  const TemporaryFolder folder;
  const std::string old = TemporaryFile(folder / "a.nc").path();
  const std::string now = TemporaryFile(folder / "b.nc").path();
  for (const std::string& path : {old, now, std::string(folder / "c.nc")}) write_bytes(path, "x");
  const auto long_ago = fs::file_time_type::clock::now() - std::chrono::hours(2);
  fs::last_write_time(old, long_ago);
  fs::last_write_time(folder / "c.nc", long_ago);
  remove_abandoned(folder.path());
  CHECK_FALSE(fs::exists(old));
  CHECK(fs::exists(now));
  CHECK(fs::exists(folder / "c.nc"));
  remove_abandoned(folder / "none");
}

TEST_CASE("targets that must not be replaced are refused as a usage error", "[io]") {
  const TemporaryFolder folder;
  write_bytes(folder / "old", "x");
  fs::create_directory(folder / "folder");
  fs::create_symlink(folder / "old", folder / "link");
  const auto message =
      [&](const std::string& target, bool overwrite, std::vector<std::string> inputs = {}) {
    const Thrown thrown = error_of([&] { check_target(target, overwrite, inputs); });
    CHECK(thrown.fault == Fault::usage);
    return thrown.message;
  };
  CHECK_THAT(message(folder / "old", false), Catch::Contains("the file exists (--overwrite"));
  CHECK_THAT(message(folder / "folder", true), Catch::Contains("only regular files"));
  CHECK_THAT(message(folder / "link", true), Catch::Contains("only regular files"));
  CHECK_THAT(message("/dev/null", true), Catch::Contains("only regular files"));
  CHECK_THAT(message(folder / "old", true, {folder / "old"}), Catch::Contains("an input"));
  CHECK_THAT(message(folder / "none/new", false), Catch::Contains("does not exist"));
  CHECK_THAT(message("", false), Catch::Contains("no file name"));
  check_target(folder / "old", true);
  check_target(folder / "new", false, {folder / "old"});
}

TEST_CASE("an interrupted command ends with status 130 and leaves no file behind", "[io]") {
  const TemporaryFolder folder;
  const Outcome outcome = run_kvsim("synth -o " + (folder / "big.h5") +
                                    " --prompt 60000 --num-layers 400 2>/dev/null & pid=$!; "
                                    "while [ -z \"$(ls -A " +
                                    folder.path() +
                                    ")\" ]; do "
                                    "sleep 0.05; done; kill -TERM $pid; wait $pid");
  CHECK(outcome.status == 130);
  CHECK(files_in(folder) == 0);
}
