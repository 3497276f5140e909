#include "tests/io/bad_trace.hpp"

#include <catch2/catch.hpp>

#include "io/trace_reader.hpp"

namespace kvsim::test {

Edit without_attribute(const char* name) {
  return [=](Editor& e) { e.remove_attribute("/", name); };
}

Edit removed(const char* object) {
  return [=](Editor& e) { e.remove(object); };
}

Edit group(const char* object) {
  return [=](Editor& e) { e.group(object); };
}

Edit number(const char* object, int64_t index, double value) {
  return [=](Editor& e) { e.set_float(object, index, static_cast<float>(value)); };
}

Edit integers(const char* object, std::vector<int64_t> values) {
  return [=](Editor& e) { e.integers(object, values); };
}

Edit texts(const char* object, std::vector<const char*> values) {
  return [=](Editor& e) { e.texts(object, values); };
}

Edit both(Edit first, Edit second) {
  return [=](Editor& e) {
    first(e);
    second(e);
  };
}

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
