#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <catch2/catch.hpp>

#include "tests/io/bad_trace.hpp"

using namespace kvsim;
using namespace kvsim::test;

TEST_CASE("files that are no complete HDF5 file are refused", "[io][bad]") {
  const TemporaryFolder folder;
  const auto message = [&](const std::string& path) {
    const Thrown thrown = error_of([&] { read_all(path); });
    CHECK(thrown.fault == Fault::bad_data);
    return thrown.message;
  };
  CHECK_THAT(message(folder / "nothing.h5"), Catch::EndsWith("nothing.h5: no such file"));
  CHECK_THAT(message(folder.path()), Catch::Contains("not a regular file"));
  write_bytes(folder / "text.h5", "hello\n");
  CHECK_THAT(message(folder / "text.h5"), Catch::Contains("not an HDF5 file"));
  write_bytes(folder / "empty.h5", "");
  CHECK_THAT(message(folder / "empty.h5"), Catch::Contains("an empty file"));
  write_small_trace(folder / "whole.h5");
  const std::string bytes = read_bytes(folder / "whole.h5");
  write_bytes(folder / "cut.h5", bytes.substr(0, bytes.size() / 2));
  CHECK_THAT(message(folder / "cut.h5"),
             Catch::Contains("truncated") && !Catch::Contains("damaged"));
  write_bytes(folder / "head.h5", bytes.substr(0, 40));
  CHECK_THAT(message(folder / "head.h5"), Catch::Contains("truncated"));
  std::string odd = bytes;
  odd[8] = 77;  // the version of the superblock
  write_bytes(folder / "odd.h5", odd);
  CHECK_THAT(message(folder / "odd.h5"),
             Catch::Contains("damaged") && !Catch::Contains("truncated"));
}

TEST_CASE("a file that somebody writes is locked, not damaged", "[io][bad]") {
  const SmallTrace trace;
  const int writer = open(trace.path.c_str(), O_RDWR | O_CLOEXEC);
  REQUIRE(flock(writer, LOCK_EX | LOCK_NB) == 0);
  const Thrown thrown = error_of([&] { read_all(trace.path); });
  close(writer);
  CHECK(thrown.fault == Fault::bad_data);
  CHECK_THAT(thrown.message, Catch::Contains("t.h5: locked: another program has it open"));
  CHECK_NOTHROW(read_all(trace.path));
}

TEST_CASE("a damaged chunk is refused: checksum, compressed stream and size", "[io][bad]") {
  const TemporaryFolder folder;
  const std::string path = folder / "t.h5";
  const Storage storage = GENERATE(Storage{.chunk = {4, 16, 8}, .fletcher32 = true},
                                   Storage{.chunk = {4, 16, 8}, .gzip = 4});
  write_small_trace(path);
  haddr_t place = 0;
  {
    Editor editor(path);
    editor.store_again("layers/0/q", storage);
    const h5::Handle dataset(H5Dopen2(editor.file(), "layers/0/q", H5P_DEFAULT));
    hsize_t size = 0;
    unsigned mask = 0;
    H5Dflush(dataset.get());
    const hsize_t origin[] = {0, 0, 0};
    REQUIRE(H5Dget_chunk_info_by_coord(dataset.get(), origin, &mask, &place, &size) >= 0);
  }
  std::string bytes = read_bytes(path);
  bytes[place + 900] = static_cast<char>(bytes[place + 900] ^ 0x10);
  write_bytes(path, bytes);
  const Thrown thrown = error_of([&] { read_all(path); });
  CHECK_THAT(thrown.message, Catch::Contains("layers/0/q: cannot be read: found a chunk"));
}

TEST_CASE("no byte of a trace crashes the reader, whatever it is changed to", "[io][bad]") {
  const TemporaryFolder folder;
  write_small_trace(folder / "whole.h5", ElementType::float16);
  Editor(folder / "whole.h5")
      .store_again("layers/0/k", {.chunk = {1, 9, 8}, .shuffle = true, .gzip = 4});
  const std::string bytes = read_bytes(folder / "whole.h5");
  const std::string path = folder / "changed.h5";
  int refused = 0;
  const auto attempt = [&](const std::string& changed) {
    write_bytes(path, changed);
    const int status = status_of(folder / "err", [&] { read_all(path); });
    CHECK((status == 0 || status == 3));
    refused += status == 3 ? 1 : 0;
  };
  for (size_t i = 0; i < 100; ++i) attempt(bytes.substr(0, i * bytes.size() / 100));
  CHECK(refused == 100);  // cut anywhere, a file is bad
  for (size_t i = 0; i < 300; ++i) {
    std::string changed = bytes;
    const size_t place = (i * 2654435761u) % bytes.size();
    changed[place] = static_cast<char>(changed[place] ^ (i % 3 == 0 ? 0xFF : 1 << (i % 8)));
    attempt(changed);
  }
}
