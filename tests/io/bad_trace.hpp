#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tests/io/trace_fixture.hpp"

namespace kvsim::test {

using Edit = std::function<void(Editor&)>;

/// Edits of the small trace, to be made later. `value`: an integer, a real or a text.
template <class Value>
Edit attribute(const char* object, const char* name, Value value) {
  return [=](Editor& e) {
    if constexpr (std::is_integral_v<Value>) e.integer(object, name, value);
    if constexpr (std::is_floating_point_v<Value>) e.real(object, name, value);
    if constexpr (std::is_pointer_v<Value>) e.text(object, name, value);
  };
}
Edit without_attribute(const char* name);  ///< of the root
Edit removed(const char* object);
Edit group(const char* object);
Edit number(const char* object, int64_t index, double value);
Edit integers(const char* object, std::vector<int64_t> values);
Edit texts(const char* object, std::vector<const char*> values);
Edit both(Edit first, Edit second);

/// One way to spoil the small trace and what the message must then contain.
struct Spoiled {
  const char* name;
  Edit edit;
  std::vector<const char*> says;
};

/// Opens the trace and reads everything in it.
void read_all(const std::string& path);

/// Every spoiled trace is refused with one line that names the file and says what is said.
void require_refused(const std::vector<Spoiled>& cases);

}  // namespace kvsim::test
