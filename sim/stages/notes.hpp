#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace kvsim {

/// A place that a paper or its code leaves open, or prints otherwise than it can be meant, and how
/// it is read here. Printed by `kvsim policies` and in policies.md 15.
struct Note {
  std::string of;       ///< a kind ("smooth=aws"), a key ("window") or a preset ("keepkv:code")
  std::string source;   ///< paper and equation, algorithm or section; or repository
  std::string point;    ///< what is open
  std::string reading;  ///< what is done, and why
};

/// Declares a note beside what it is about:
///     const DeclareNote shift("smooth=aws", "ReST-KV Eq. 12", "what is open", "how it is read");
struct DeclareNote {
  DeclareNote(const char* of, const char* source, const char* point, const char* reading);
};

/// Notes of one kind, key or preset, by source; and all, those of presets last.
std::vector<const Note*> notes_of(std::string_view of);
std::vector<const Note*> all_notes();

}  // namespace kvsim
