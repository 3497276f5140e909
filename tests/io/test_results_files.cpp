#include <catch2/catch.hpp>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <numeric>

#include "io/side_files.hpp"
#include "tests/io/trace_fixture.hpp"
#include "tests/support/results.hpp"

using namespace kvsim;
using namespace kvsim::test;

namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

/// Every type, a text outside ASCII, an undefined value, a compressed flag, a long attribute.
Dataset sample() {
  Dataset dataset;
  add(dataset, "policy", std::vector<std::string>{"snapkv,window=16", "größe"});
  add(dataset, "budget", std::vector<double>{0.2, 0.5, 1});
  add(dataset, "layer", std::vector<int32_t>{0, 5});
  add(dataset, "kv_head", std::vector<int32_t>{0, 1, 2});
  add(dataset, "position", std::vector<int64_t>(10000));
  add(dataset, "budget_label", std::vector<std::string>{"0.2", "50%", "512"});
  std::vector<double> kept(2 * 3 * 2 * 3);
  std::iota(kept.begin(), kept.end(), 0.0);
  kept[7] = kNaN;
  std::vector<uint8_t> mask(kept.size() * 10000);
  for (size_t i = 0; i < mask.size(); ++i) mask[i] = static_cast<uint8_t>(i % 7 == 0);
  add(dataset, "kept", std::move(kept));
  add(dataset, "kept_mask", std::move(mask));
  dataset.set_attribute("config", std::string(200000, 'x'));
  dataset.set_attribute("prompt_len", int64_t{10000});
  dataset.set_attribute("share", 0.25);
  dataset.set_attribute("empty", "");
  return dataset;
}

/// What a shell command prints; fails the test when it fails.
std::string output_of(const std::string& command) {
  std::FILE* pipe = popen((command + " 2>&1").c_str(), "r");
  std::string text;
  char buffer[4096];
  while (const size_t got = std::fread(buffer, 1, sizeof buffer, pipe)) text.append(buffer, got);
  INFO(text);
  CHECK(pclose(pipe) == 0);
  return text;
}

/// The sample as a file, judged by a script with a Python that can import this module, if any.
void check_by_python(const std::string& module, const std::string& text) {
  const TemporaryFolder folder;
  const std::string path = folder / "r.nc", script = folder / "check.py";
  write_results(sample(), path);
  write_bytes(script, text);
  const char* home = std::getenv("HOME");
  const std::string venv = std::string(home == nullptr ? "" : home) +
                           "/.cache/kvsim/plots/bin/python";
  for (const std::string& python : {std::string("/usr/bin/python3"), venv})
    if (std::system((python + " -c 'import " + module + "' >/dev/null 2>&1").c_str()) == 0) {
      CHECK(output_of(python + " " + script + " " + path) == "fine\n");
      return;
    }
  WARN(module << " is not installed: not tested");
}

}  // namespace

TEST_CASE("a results file reads back as it was written", "[results]") {
  const TemporaryFolder folder;
  const std::string path = folder / "r.nc";
  const Dataset written = sample();
  write_results(written, path);
  const Dataset read = read_results(path);
  REQUIRE(read.variables().size() == written.variables().size());
  for (size_t d = 0; d < written.dimensions().size(); ++d) {
    CHECK(read.dimensions()[d].name == written.dimensions()[d].name);
    CHECK(read.dimensions()[d].size == written.dimensions()[d].size);
  }
  for (const Variable& variable : written.variables()) {
    const Variable& back = read.at(variable.name);
    CHECK(back.dims == variable.dims);
    CHECK(back.units == variable.units);
    CHECK(back.long_name == variable.long_name);
    if (variable.name != "kept") CHECK(back.values == variable.values);
  }
  CHECK(read.row("kept", {0, 0, 1, 1})[0] == 4);
  CHECK(std::isnan(read.row("kept", {0, 1, 0, 1})[0]));
  CHECK(std::get<std::string>(*read.attribute("config")).size() == 200000);
  CHECK(std::get<int64_t>(*read.attribute("prompt_len")) == 10000);
  CHECK(std::get<double>(*read.attribute("share")) == 0.25);
  CHECK(std::get<std::string>(*read.attribute("empty")).empty());
}

TEST_CASE("equal datasets give equal files", "[results]") {
  const TemporaryFolder folder;
  write_results(sample(), folder / "a.nc");
  write_results(sample(), folder / "b.nc");
  CHECK(read_bytes(folder / "a.nc") == read_bytes(folder / "b.nc"));
}

TEST_CASE("what is no results file is bad data with one line", "[results]") {
  const TemporaryFolder folder;
  const std::string path = folder / "t.h5", whole = folder / "whole.nc";
  write_small_trace(path);
  write_bytes(folder / "x.nc", "no HDF5");
  write_results(sample(), whole);
  const std::string bytes = read_bytes(whole);
  write_bytes(folder / "half.nc", bytes.substr(0, bytes.size() / 2));
  for (const std::string& file : {path, folder / "x.nc", folder / "half.nc"}) {
    CAPTURE(file);
    const auto refused = error_of([&] { read_results(file); });
    CHECK(refused.fault == Fault::bad_data);
    CHECK_THAT(refused.message, Catch::Contains("results file of kvsim"));
    CHECK_THAT(refused.message, !Catch::Contains("kvtrace"));
  }
  CHECK(error_of([&] { read_results(folder / "none.nc"); }).fault == Fault::bad_data);
}

TEST_CASE("a folder that vanished is an error and leaves nothing behind", "[results]") {
  const TemporaryFolder folder;
  CHECK(error_of([&] { write_results(sample(), folder / "gone/r.nc"); }).fault == Fault::failure);
  CHECK(std::filesystem::is_empty(folder.path()));
}

TEST_CASE("ncdump sees dimensions, types, fill values and attributes", "[results]") {
  if (std::system("command -v ncdump >/dev/null 2>&1") != 0) {
    WARN("ncdump is not installed: not tested");
    return;
  }
  const TemporaryFolder folder;
  const std::string path = folder / "r.nc";
  write_results(sample(), path);
  const std::string header = output_of("ncdump -h " + path);
  for (const char* line :
       {"policy = 2 ;", "position = 10000 ;", "string policy(policy) ;", "double budget(budget) ;",
        "int layer(layer) ;", "int64 position(position) ;", "string budget_label(budget) ;",
        "double kept(policy, budget, layer, kv_head) ;", "kept:_FillValue = NaN ;",
        "kept_mask:_FillValue = 255UB ;", "kept_mask:flag_values = 0UB, 1UB, 2UB ;",
        "kept_mask:flag_meanings = \"dropped kept merged\" ;", ":prompt_len = 10000LL ;"}) {
    CHECK_THAT(header, Catch::Contains(line));
  }
  CHECK(output_of("ncdump -k " + path) == "netCDF-4\n");
  CHECK_THAT(output_of("ncdump -v policy " + path), Catch::Contains("größe"));
}

TEST_CASE("h5py finds a dimension on every axis and none but variable-length strings",
          "[results]") {
  check_by_python("h5py", R"(
import sys, h5py
with h5py.File(sys.argv[1], "r") as f:
    for name, data in f.items():
        if h5py.h5ds.is_scale(data.id):
            continue
        for axis, dim in enumerate(data.dims):
            scale, = dim.values()
            assert len(scale) == data.shape[axis], name
            assert scale.name in ("/policy", "/budget", "/layer", "/kv_head", "/position"), name
        if data.dtype.kind == "O":
            assert h5py.check_string_dtype(data.dtype).length is None, name
    for name in f.attrs:
        kind = f.attrs.get_id(name).get_type()
        assert not isinstance(kind, h5py.h5t.TypeStringID) or kind.is_variable_str(), name
print("fine")
)");
}

TEST_CASE("xarray opens results with every engine it has", "[results]") {
  check_by_python("xarray", R"(
import importlib.util, sys, xarray
opened = 0
for engine, module in (("h5netcdf", "h5netcdf"), ("netcdf4", "netCDF4")):
    if importlib.util.find_spec(module) is None:
        continue
    d = xarray.open_dataset(sys.argv[1], engine=engine).load()
    assert dict(d.sizes) == dict(policy=2, budget=3, layer=2, kv_head=3, position=10000), engine
    assert float(d.kept.sel(policy="snapkv,window=16", budget=0.2, layer=5)[1]) == 4, engine
    assert int(d.kept.isnull().sum()) == 1, engine
    assert d.attrs["prompt_len"] == 10000 and len(d.attrs["config"]) == 200000, engine
    opened += 1
assert opened
print("fine")
)");
}
