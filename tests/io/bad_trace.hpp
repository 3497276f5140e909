#pragma once

#include <string>
#include <vector>

#include "tests/io/trace_fixture.hpp"

namespace kvsim::test {

using Edit = void (*)(Editor&);

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
