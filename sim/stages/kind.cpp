#include "sim/stages/kind.hpp"

namespace kvsim {
namespace {

/// By stage and name.
using KindTable = std::map<std::pair<std::string, std::string>, const Kind*>;

KindTable& table() {
  static KindTable kinds;
  return kinds;
}

}  // namespace

void announce_kind(const Kind& kind) {
  const KindInfo& info = kind.info();
  if (!table().emplace(std::pair(info.stage, info.name), &kind).second)
    throw std::logic_error("kind registered twice: " + info.stage + "=" + info.name);
}

const Kind& find_kind(std::string_view stage, std::string_view name) {
  const auto found = table().find(std::pair(std::string(stage), std::string(name)));
  if (found == table().end()) throw std::logic_error("no such kind: " + std::string(name));
  return *found->second;
}

std::vector<const KindInfo*> all_kinds() {
  std::vector<const KindInfo*> all;
  for (const auto& [name, kind] : table()) all.push_back(&kind->info());
  return all;
}

std::vector<const KindInfo*> kinds_of_stage(std::string_view stage) {
  std::vector<const KindInfo*> found;
  for (auto at = table().lower_bound({std::string(stage), ""});
       at != table().end() && at->first.first == stage; ++at)
    found.push_back(&at->second->info());
  return found;
}

}  // namespace kvsim
