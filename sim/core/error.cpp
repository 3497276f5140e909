#include "sim/core/error.hpp"

#include <utility>

namespace kvsim {
namespace {

std::string one_line(const Error::Parts& p) {
  std::string text = p.where;
  auto append = [&text](const char* separator, const std::string& part) {
    if (!text.empty()) text += separator;
    text += part;
  };
  if (!p.what.empty()) append(": ", p.what);
  if (!p.found.empty()) append(": ", "found " + p.found);
  if (!p.expected.empty()) append(p.found.empty() ? ": " : ", ", "expected " + p.expected);
  if (!p.hint.empty()) text += " (" + p.hint + ")";
  for (char& c : text)
    if (c == '\n' || c == '\r') c = ' ';
  return text;
}

}  // namespace

Error::Error(Fault fault, Parts parts)
    : std::runtime_error(one_line(parts)), fault_(fault), parts_(std::move(parts)) {}

void usage_error(Error::Parts parts) { throw Error(Fault::usage, std::move(parts)); }
void bad_data(Error::Parts parts) { throw Error(Fault::bad_data, std::move(parts)); }

}  // namespace kvsim
