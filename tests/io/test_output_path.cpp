// Files that say what stands between heads and stream: trace-format.md 8.
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>

#include "io/trace_reader.hpp"
#include "tests/io/trace_fixture.hpp"
#include "tests/support/random_trace.hpp"

using namespace kvsim;
using namespace kvsim::test;

namespace {

std::string path_trace(const TemporaryFolder& folder, const std::string& between,
                       ElementType type = ElementType::float32) {
  RandomTraceShape shape;
  shape.between = between;
  shape.type = type;
  shape.draft = true;
  const auto trace = random_trace(shape);
  write_trace(folder / "t.h5", trace->info, {&trace->layer, 1});
  return folder / "t.h5";
}

bool equal_bits(const Tensor& a, const Tensor& b) {
  return a.type() == b.type() && a.count() == b.count() &&
         std::memcmp(a.data(), b.data(), a.bytes()) == 0;
}

}  // namespace

TEST_CASE("a path between heads and stream reads back the same, and is written again as it was",
          "[io][path]") {
  const ElementType type = GENERATE(ElementType::float32, ElementType::float16,
                                    ElementType::bfloat16);
  const TemporaryFolder folder;
  const std::string path = path_trace(folder, "gio", type);
  RandomTraceShape shape;
  shape.between = "gio";
  shape.type = type;
  shape.draft = true;
  const auto written = random_trace(shape);
  const TraceReader reader(path);
  CHECK(reader.header(0).gate_width == 16);
  CHECK(reader.header(0).inner_eps == 0.1);
  const LayerTrace read = reader.read_layer(0, false, {0});
  CHECK(equal_bits(read.path.gate, written->layer.path.gate));
  CHECK(equal_bits(read.path.wo, written->layer.wo));
  CHECK(read.wo.type() == ElementType::float32);
  CHECK(read.path.inner.gain == written->layer.path.inner.gain);
  CHECK(read.path.outer.gain == written->layer.path.outer.gain);
  CHECK(read.path.outer.rms == written->layer.path.outer.rms);
  CHECK(equal_bits(read.probes[0].gate, written->layer.probes[0].gate));
  write_trace(folder / "again.h5", reader.info(), {&read, 1});
  CHECK(read_bytes(folder / "again.h5") == read_bytes(path));
}

TEST_CASE("queries of a probe in the place of the later ones bring their gate", "[io][path]") {
  const TemporaryFolder folder;
  const std::string path = path_trace(folder, "h");
  const TraceReader reader(path, "draft");
  const LayerTrace layer = reader.read_layer(0);
  REQUIRE(layer.path.gate.dim(1) == 45);
  const LayerTrace own = TraceReader(path).read_layer(0, false, {0});
  CHECK(element(layer.path.gate, 2, 3, 0) == element(own.path.gate, 2, 3, 0));
  CHECK(element(layer.path.gate, 2, 42, 0) == element(own.probes[0].gate, 2, 2, 0));
}

TEST_CASE("a trace without such parts has its own W_O", "[io][path]") {
  const TemporaryFolder folder;
  const LayerTrace layer = TraceReader(path_trace(folder, "", ElementType::float16)).read_layer(0);
  CHECK(layer.path.empty());
  CHECK(layer.path.wo.empty());
  CHECK(layer.wo.type() == ElementType::float16);
}

TEST_CASE("bad parts are refused by name", "[io][bad][path]") {
  struct Case {
    const char* name;
    std::function<void(Editor&)> edit;
    std::vector<const char*> says;
  };
  static const std::vector<float> ones(8192, 1.0f);
  const auto floats = [](const char* object, const h5::Shape& shape, float first = 1) {
    return [=](Editor& e) {
      std::vector<float> values = ones;
      values[0] = first;
      e.dataset(object, H5T_IEEE_F32LE, shape, H5T_NATIVE_FLOAT, values.data());
    };
  };
  const std::vector<Case> cases = {
      {"gate width", floats("layers/0/gate", {4, 49, 3}), {"layers/0/gate", "[Hq, M, 1]"}},
      {"gate rows", floats("layers/0/gate", {4, 48, 16}), {"layers/0/gate", "wrong shape"}},
      {"NaN in a gate", floats("layers/0/gate", {4, 49, 16}, NAN), {"layers/0/gate", "NaN"}},
      {"gate of a probe missing",
       [](Editor& e) { e.remove("layers/0/probes/draft/gate"); },
       {"probes/draft/gate", "missing"}},
      {"inner gain", floats("layers/0/inner_gain", {4, 15}), {"inner_gain", "[Hq, dv]"}},
      {"outer gain", floats("layers/0/outer_gain", {23}), {"outer_gain", "[D]"}},
      {"no outer gain",
       [](Editor& e) { e.remove("layers/0/outer_gain"); },
       {"layers/0/outer_gain", "missing"}},
      {"no roots",
       [](Editor& e) { e.remove("layers/0/outer_rms"); },
       {"layers/0/outer_rms", "missing"}},
      {"roots", floats("layers/0/inner_rms", {48}), {"inner_rms", "[M]"}},
      {"root of 0", floats("layers/0/inner_rms", {49}, 0), {"inner_rms", "positive"}},
      {"negative eps",
       [](Editor& e) { e.real("layers/0", "outer_eps", -1e-6); },
       {"attribute outer_eps", "0 or a positive number"}},
      {"eps of a text",
       [](Editor& e) { e.text("layers/0", "inner_eps", "x"); },
       {"attribute inner_eps"}},
      {"a gain beyond float32",
       floats("layers/0/outer_gain", {24}, 3e38f),
       {"layers/0/wo", "not finite"}},
  };
  for (const Case& one : cases) {
    CAPTURE(one.name);
    const TemporaryFolder folder;
    const std::string path = path_trace(folder, "gio");
    {
      Editor editor(path);
      one.edit(editor);
      if (std::string(one.name) == "a gain beyond float32")
        editor.set_float("layers/0/wo", 0, 1e5f);
    }
    const Thrown thrown = error_of([&] { TraceReader(path).read_layer(0, true, {0}); });
    CHECK(thrown.fault == Fault::bad_data);
    for (const char* text : one.says) CHECK_THAT(thrown.message, Catch::Contains(text));
  }
}
