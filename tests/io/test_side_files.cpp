#include <catch2/catch.hpp>
#include <cmath>

#include "io/side_files.hpp"
#include "tests/io/trace_fixture.hpp"

using namespace kvsim;
using namespace kvsim::test;

TEST_CASE("a table file is read with comments and blank lines", "[io]") {
  const TemporaryFolder folder;
  write_bytes(folder / "t.txt", "# two layers\n\n0.5 1 # first\n\t-2e-1\t3.25\n");
  const Table<double> table = read_table(folder / "t.txt", 2, 2);
  CHECK(table.values() == std::vector<double>{0.5, 1, -0.2, 3.25});
}

TEST_CASE("a byte order mark is no part of a table, and UTF-16 is named", "[io]") {
  const TemporaryFolder folder;
  const std::string path = folder / "t.txt";
  write_bytes(path, "\xEF\xBB\xBF"
                    "1 2\n3 4\n");
  CHECK(read_table(path, 2, 2).values() == std::vector<double>{1, 2, 3, 4});
  write_bytes(path, "1");
  CHECK(read_table(path, 1, 1).values() == std::vector<double>{1});
  write_bytes(path, std::string("\xFF\xFE"
                                "1\0 \0",
                                6));
  CHECK(error_of([&] { read_table(path, 1, 1); }).message ==
        path + ": not UTF-8: found UTF-16 (save it as UTF-8)");
}

TEST_CASE("a table file with other content is bad data, with the line", "[io]") {
  const TemporaryFolder folder;
  const std::string path = folder / "t.txt";
  const auto message = [&](const std::string& content) {
    write_bytes(path, content);
    const Thrown thrown = error_of([&] { read_table(path, 2, 2); });
    CHECK(thrown.fault == Fault::bad_data);
    return thrown.message;
  };
  CHECK(message("1 2\n3 x\n") ==
        path + ": line 2: not a number: found \"x\", expected a finite number");
  CHECK(message("1 2 3\n4 5\n") == path + ": line 1: wrong number of columns: found 3, expected 2");
  CHECK(message("1 2\n\n3\n") == path + ": line 3: wrong number of columns: found 1, expected 2");
  CHECK_THAT(message("1 2\n"), Catch::Contains("wrong number of lines: found 1, expected 2"));
  CHECK_THAT(message("1 2\n3 4\n5 6\n"), Catch::Contains("found 3, expected 2"));
  CHECK_THAT(message("1 nan\n3 4\n"), Catch::Contains("not a number"));
  CHECK_THAT(message("1 1e999\n3 4\n"), Catch::Contains("not a number"));
  CHECK_THAT(message("1 20%\n3 4\n"), Catch::Contains("not a number"));
  CHECK_THAT(message(""), Catch::Contains("found 0"));
  CHECK_THAT(message(std::string("1 \x1b[2J\n", 7)), !Catch::Contains("\x1b"));
  const Thrown missing = error_of([&] { read_table(folder / "none", 2, 2); });
  CHECK(missing.fault == Fault::bad_data);
  CHECK_THAT(missing.message, Catch::EndsWith("no such file"));
  CHECK(error_of([&] { read_table(folder.path(), 2, 2); }).fault == Fault::bad_data);
}

TEST_CASE("scores are read from float32, float16 and float64", "[io]") {
  const TemporaryFolder folder;
  const std::string path = folder / "s.h5";
  h5::Handle(H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT));
  const double values[] = {1, 2, 3, -4.5, 0.25, 6};
  {
    Editor editor(path);
    editor.dataset("layers/0/score", H5T_IEEE_F32LE, {2, 3}, H5T_NATIVE_DOUBLE, values);
    editor.dataset("layers/1/score", h5::half_type().get(), {2, 3}, H5T_NATIVE_DOUBLE, values);
    editor.dataset("layers/2/score", H5T_IEEE_F64LE, {2, 3}, H5T_NATIVE_DOUBLE, values);
  }
  for (const int layer : {0, 1, 2}) {
    const Table<double> scores = read_scores(path, layer, 2, 3);
    CHECK(scores.values() == std::vector<double>(values, values + 6));
  }
}

TEST_CASE("a score file of another shape, type or content is bad data", "[io]") {
  const TemporaryFolder folder;
  const std::string path = folder / "s.h5";
  h5::Handle(H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT));
  const double values[] = {1, 2, 3, 4, NAN, 6};
  {
    Editor editor(path);
    editor.dataset("layers/0/score", H5T_IEEE_F32LE, {2, 3}, H5T_NATIVE_DOUBLE, values);
    editor.dataset("layers/1/score", H5T_STD_I64LE, {2, 3}, H5T_NATIVE_DOUBLE, values);
  }
  const auto message = [&](int layer, int64_t owners, int64_t entries) {
    const Thrown thrown = error_of([&] { read_scores(path, layer, owners, entries); });
    CHECK(thrown.fault == Fault::bad_data);
    return thrown.message;
  };
  CHECK_THAT(message(0, 2, 3),
             Catch::Contains("layers/0/score: not a finite number: found NaN at [1, 1]"));
  CHECK_THAT(message(0, 4, 3),
             Catch::Contains("wrong shape: found [2, 3], expected [heads, n] = [4, 3]"));
  CHECK_THAT(message(1, 2, 3), Catch::Contains("wrong type: found int64"));
  CHECK_THAT(message(2, 2, 3), Catch::Contains("layers/2/score: missing"));
  CHECK_THAT(error_of([&] { read_scores(folder / "none", 0, 1, 1); }).message,
             Catch::EndsWith("no such file"));
}
