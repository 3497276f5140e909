#include "sim/stages/notes.hpp"

#include <algorithm>
#include <memory>
#include <tuple>

#include "sim/stages/kind.hpp"
#include "sim/stages/parameter.hpp"

namespace kvsim {
namespace {

std::vector<std::unique_ptr<const Note>>& note_table() {
  static std::vector<std::unique_ptr<const Note>> notes;
  return notes;
}

/// Where it stands: the place of its key or stage, presets after all of them.
size_t place_of(const Note& note) {
  const std::vector<const Parameter*> all = parameters();
  const Parameter* key = find_parameter(note.of.substr(0, note.of.find('=')));
  return static_cast<size_t>(std::ranges::find(all, key) - all.begin());
}

}  // namespace

DeclareNote::DeclareNote(const char* of, const char* source, const char* point,
                         const char* reading) {
  note_table().push_back(std::make_unique<const Note>(Note{of, source, point, reading}));
}

std::vector<const Note*> all_notes() {
  std::vector<const Note*> all;
  for (const auto& note : note_table()) all.push_back(note.get());
  std::ranges::sort(all, {}, [](const Note* note) {
    return std::tuple(place_of(*note), note->of, note->source, note->point);
  });
  return all;
}

std::vector<const Note*> notes_of(std::string_view of) {
  std::vector<const Note*> found = all_notes();
  std::erase_if(found, [&](const Note* note) { return note->of != of; });
  return found;
}

}  // namespace kvsim
