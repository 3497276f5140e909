// Probes of a trace file (trace-format.md 7).
#include <catch2/catch.hpp>

#include "io/trace_reader.hpp"
#include "io/trace_writer.hpp"
#include "run/trace/attention_reference.hpp"
#include "run/trace/synth.hpp"
#include "sim/core/layer_trace.hpp"
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
  write_trace(path, trace->info, {&trace->layer, 1});
  const Thrown thrown = error_of([&] { TraceReader(path).read_layer(0, true, {0}); });
  CHECK_THAT(thrown.message, Catch::Contains("probes/repeat"));
  return thrown.message;
}

}  // namespace

TEST_CASE("probes are read as they were written, and only where they are asked for", "[io]") {
  const auto trace = random_trace(probed());
  const TemporaryFolder folder;
  const std::string path = folder / "trace.h5";
  write_trace(path, trace->info, {&trace->layer, 1});
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
  CHECK(read.has_output_gradient);
  CHECK(reader.read_layer(0).probes[0].q.empty());
  const ProbeLayer layer = reader.read_layer(0, false, {0}).probes[0];
  for (int64_t t = 0; t < 7; ++t) {
    CHECK(element(layer.q, 3, t, 2) == element(trace->layer.probes[0].q, 3, t, 2));
    CHECK(element(layer.v, 1, t, 2) == element(trace->layer.probes[0].v, 1, t, 2));
  }
  CHECK(layer.residual_norm == trace->layer.probes[0].residual_norm);
  CHECK(layer.input_norm == trace->layer.probes[0].input_norm);
  CHECK(layer.output_gradient == trace->layer.probes[0].output_gradient);
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
    CHECK_THAT(line, Catch::Contains(what));
  };
  says(refusal([](ProbeInfo& p, ProbeLayer&) { p.position[1] = 40; }), "not ascending");
  says(refusal([](ProbeInfo& p, ProbeLayer&) { p.position[0] = 39; }), "out of range");
  says(refusal([](ProbeInfo& p, ProbeLayer&) { p.parts[0].tokens.begin = 1; }),
       "does not begin with the first token");
  says(refusal([](ProbeInfo& p, ProbeLayer&) { p.parts[1].tokens.begin = 7; }), "out of range");
  says(refusal([](ProbeInfo& p, ProbeLayer&) { p.parts[1].reads = {3, 41}; }), "out of range");
  says(refusal([](ProbeInfo& p, ProbeLayer&) { p.position.push_back(44); }), "wrong shape");
  says(refusal([](ProbeInfo& p, ProbeLayer&) { p.answer_begin = 7; }), "answer_begin");
  says(refusal([](ProbeInfo&, ProbeLayer& l) { l.v = Tensor(); }), "missing");
  says(refusal([](ProbeInfo&, ProbeLayer& l) { set_element(l.k, 0, 1, 2, INFINITY); }),
       "not a finite number");
}

TEST_CASE("a probe's tokens take the place of the later ones", "[io]") {
  RandomTraceShape shape = probed();
  shape.draft = true;
  const auto trace = random_trace(shape);
  const TemporaryFolder folder;
  const std::string path = folder / "trace.h5";
  TraceWriter writer(path, trace->info);
  writer.write_tokens(std::vector<int32_t>(49, 7), std::vector<std::string>(49, "a"));
  writer.write_layer(trace->layer);
  writer.commit();
  const TraceReader reader(path, "draft");
  CHECK(reader.later() == "draft");
  CHECK(reader.info().prompt_len == 40);
  CHECK(reader.info().total_len == 45);
  CHECK(reader.info().first_step() == 40);
  CHECK(reader.info().query_position.back() == 44);
  CHECK_FALSE(reader.has_token_ids());  // the probe has none
  CHECK(reader.token_text() == [] {
    std::vector<std::string> texts(45, "a");
    std::fill(texts.begin() + 40, texts.end(), "");
    return texts;
  }());
  const LayerTrace layer = reader.read_layer(0);
  const ProbeLayer& draft = trace->layer.probes[1];
  CHECK(element(layer.k, 1, 39, 3) == element(trace->layer.k, 1, 39, 3));
  CHECK(element(layer.k, 1, 42, 3) == element(draft.k, 1, 2, 3));
  CHECK(element(layer.v, 0, 44, 1) == element(draft.v, 0, 4, 1));
  CHECK(element(layer.q, 3, 39, 5) == element(trace->layer.q, 3, 39, 5));
  CHECK(element(layer.q, 3, 43, 5) == element(draft.q, 3, 3, 5));
  CHECK(reader.read_layer(0, false, {1}).probes[1].q.dim(1) == 7);  // others observe as before
  CHECK_THROWS_WITH(TraceReader(path, "question"),
                    Catch::Contains("no such probe") && Catch::Contains("draft, repeat"));
  CHECK_THROWS_WITH(TraceReader(path, "repeat"), Catch::Contains("2 parts"));
  ProbeInfo& info = trace->info.probes[1];
  const auto refused = [&] {
    write_trace(folder / "again.h5", trace->info, {&trace->layer, 1});
    CHECK_NOTHROW(TraceReader(folder / "again.h5"));
    return error_of([&] { TraceReader(folder / "again.h5", "draft"); }).message;
  };
  info.position.back() = 60;
  CHECK_THAT(refused(), Catch::Contains("do not follow the prompt at once"));
  info.position.back() = 44;
  trace->layer.probes[1].k = trace->layer.probes[1].v = Tensor();
  CHECK_THAT(refused(), Catch::Contains("no keys and values"));
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
