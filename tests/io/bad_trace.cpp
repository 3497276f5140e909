#include "tests/io/bad_trace.hpp"

#include <catch2/catch.hpp>

#include "io/trace_reader.hpp"

namespace kvsim::test {

void read_all(const std::string& path) {
  const TraceReader trace(path);
  trace.token_text();
  trace.token_ids();
  for (const int layer : trace.info().layers) trace.read_layer(layer, true);
}

void require_refused(const std::vector<Spoiled>& cases) {
  const TemporaryFolder folder;
  const std::string path = folder / "bad.h5";
  for (const Spoiled& spoiled : cases) {
    INFO(spoiled.name);
    write_small_trace(path);
    {
      Editor editor(path);
      spoiled.edit(editor);
    }
    const Thrown thrown = error_of([&] { read_all(path); });
    CHECK(thrown.fault == Fault::bad_data);
    CHECK_THAT(thrown.message, Catch::StartsWith(path + ": "));
    CHECK(thrown.message.find('\n') == std::string::npos);
    for (const char* part : spoiled.says) CHECK_THAT(thrown.message, Catch::Contains(part));
  }
}

}  // namespace kvsim::test
