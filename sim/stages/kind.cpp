#include "sim/stages/kind.hpp"

namespace kvsim {
namespace {

using Key = std::pair<std::string, std::string>;

std::map<Key, const KindInfo*>& table() {
  static std::map<Key, const KindInfo*> kinds;
  return kinds;
}

}  // namespace

void announce_kind(const KindInfo& info) {
  if (!table().emplace(Key{info.stage, info.name}, &info).second)
    throw std::logic_error("kind registered twice: " + info.stage + "=" + info.name);
}

std::vector<const KindInfo*> all_kinds() {
  std::vector<const KindInfo*> all;
  for (const auto& [key, info] : table()) all.push_back(info);
  return all;
}

std::vector<const KindInfo*> kinds_of_stage(std::string_view stage) {
  std::vector<const KindInfo*> found;
  for (const auto& [key, info] : table())
    if (key.first == stage) found.push_back(info);
  return found;
}

}  // namespace kvsim
