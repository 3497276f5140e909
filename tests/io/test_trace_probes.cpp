// Probes of a trace file (trace-format.md 7).
#include <catch2/catch.hpp>

#include "io/trace_reader.hpp"
#include "io/trace_writer.hpp"
#include "run/trace/attention_reference.hpp"
#include "run/trace/synth.hpp"
#include "sim/core/error.hpp"
#include "sim/core/probe_view.hpp"
#include "tests/io/trace_fixture.hpp"
#include "tests/support/random_trace.hpp"

using namespace kvsim;
using namespace kvsim::test;

namespace {

RandomTraceShape probed() {
  RandomTraceShape shape;
  shape.probe = true;
  return shape;
}

/// What a reader says of a trace whose probe was changed.
template <class Change>
std::string refusal(const Change& change) {
  const auto trace = random_trace(probed());
  change(trace->info.probes[0], trace->layer.probes[0]);
  const TemporaryFolder folder;
  const std::string path = folder / "trace.h5";
  TraceWriter writer(path, trace->info);
  writer.write_layer(trace->layer);
  writer.commit();
  try {
    const TraceReader reader(path);
    reader.read_layer(0, true, {0});
  } catch (const Error& error) {
    CHECK(std::string(error.what()).find("probes/repeat") != std::string::npos);
    return error.what();
  }
  return {};
}

}  // namespace

TEST_CASE("probes are read as they were written, and only where they are asked for", "[io]") {
  const auto trace = random_trace(probed());
  const TemporaryFolder folder;
  const std::string path = folder / "trace.h5";
  TraceWriter writer(path, trace->info);
  writer.write_layer(trace->layer);
  writer.commit();
  const TraceReader reader(path);
  REQUIRE(reader.info().probes.size() == 1);
  const ProbeInfo &read = reader.info().probes[0], &written = trace->info.probes[0];
  CHECK(read.name == "repeat");
  CHECK(read.position == written.position);
  REQUIRE(read.parts.size() == 2);
  for (size_t p = 0; p < 2; ++p) {
    CHECK(read.parts[p].tokens == written.parts[p].tokens);
    CHECK(read.parts[p].reads == written.parts[p].reads);
  }
  CHECK((read.has_keys && read.has_residual_norm && read.has_input_norm));
  CHECK(reader.read_layer(0).probes[0].q.empty());
  const ProbeLayer layer = reader.read_layer(0, false, {0}).probes[0];
  for (int64_t t = 0; t < 7; ++t) {
    CHECK(element(layer.q, 3, t, 2) == element(trace->layer.probes[0].q, 3, t, 2));
    CHECK(element(layer.v, 1, t, 2) == element(trace->layer.probes[0].v, 1, t, 2));
  }
  CHECK(layer.residual_norm == trace->layer.probes[0].residual_norm);
  CHECK(layer.input_norm == trace->layer.probes[0].input_norm);
}

TEST_CASE("a part of a probe sees the prompt and itself", "[io]") {
  const auto trace = random_trace(probed());
  const auto view = probe_view(trace->layer, 0, 1);
  CHECK(view->info.total_len == 43);
  CHECK(view->info.query_position == std::vector<int64_t>{40, 41, 42});
  CHECK(element(view->layer.k, 1, 39, 3) == element(trace->layer.k, 1, 39, 3));
  CHECK(element(view->layer.k, 1, 40, 3) == element(trace->layer.probes[0].k, 1, 4, 3));
  CHECK(element(view->layer.q, 2, 2, 0) == element(trace->layer.probes[0].q, 2, 6, 0));
  const TraceInfo info = probe_info(trace->info, 0, 1, true);
  CHECK(info.steps() == 3);
  CHECK(info.first_step() == 40);
}

TEST_CASE("a bad probe is refused with one line that names it", "[io][bad]") {
  const auto says = [](const std::string& line, const char* what) {
    CAPTURE(line);
    CHECK(line.find(what) != std::string::npos);
  };
  says(refusal([](ProbeInfo& p, ProbeLayer&) { p.position[1] = 40; }), "not ascending");
  says(refusal([](ProbeInfo& p, ProbeLayer&) { p.position[0] = 39; }), "out of range");
  says(refusal([](ProbeInfo& p, ProbeLayer&) { p.parts[0].tokens.begin = 1; }),
       "does not begin with the first token");
  says(refusal([](ProbeInfo& p, ProbeLayer&) { p.parts[1].tokens.begin = 7; }), "out of range");
  says(refusal([](ProbeInfo& p, ProbeLayer&) { p.parts[1].reads = {3, 41}; }), "out of range");
  says(refusal([](ProbeInfo& p, ProbeLayer&) { p.position.push_back(44); }), "wrong shape");
  says(refusal([](ProbeInfo&, ProbeLayer& l) { l.v = Tensor(); }), "missing");
  says(refusal([](ProbeInfo&, ProbeLayer& l) { set_element(l.k, 0, 1, 2, INFINITY); }),
       "not a finite number");
}

TEST_CASE("recorded outputs of a probe are recomputed", "[io]") {
  const TemporaryFolder folder;
  const std::string path = folder / "synth.h5";
  SynthConfig config;
  config.prompt = 100;
  config.steps = 10;
  config.type = ElementType::float32;
  config.probe_chunk = 40;
  write_synth(config, path);
  const TraceReader reader(path);
  REQUIRE(reader.info().probes.at(0).parts.size() == 3);
  LayerTrace layer = reader.read_layer(1, true, {0});
  CHECK(check_probe(layer, 0).error < 1e-6);
  CHECK(check_probe(layer, 0).probe == "repeat");
  set_element(layer.probes[0].k, 0, 0, 0, 9);  // of the first token of the first part
  CHECK(check_probe(layer, 0).error > 1e-3);
}
