
#include "sim/stages/quantize/number_format.hpp"

namespace kvsim {
namespace {

std::map<std::string, NumberFormat, std::less<>>& table() {
  static std::map<std::string, NumberFormat, std::less<>> formats;
  return formats;
}

}  // namespace

DeclareFormat::DeclareFormat(NumberFormat format) {
  const std::string name = format.name;
  if (!table().emplace(name, std::move(format)).second)
    throw std::logic_error("two formats are called " + name);
}

std::vector<const NumberFormat*> number_formats() {
  std::vector<const NumberFormat*> all;
  for (const auto& [name, format] : table()) all.push_back(&format);
  return all;
}

const NumberFormat* find_format(std::string_view name) {
  const auto found = table().find(name);
  return found == table().end() ? nullptr : &found->second;
}

}  // namespace kvsim
