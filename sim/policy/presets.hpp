#pragma once
#include "sim/stages/kind.hpp"

namespace kvsim {

/// One row of the preset table: a complete assignment of the stages.
struct Preset {
  std::string name;
  std::string variant;  ///< empty for the bare preset
  std::string cells;    ///< key=value pairs that differ from the parameters' defaults
  std::string summary;  ///< one line
  std::string source;   ///< paper or repository
};

/// Every row of methods.toml, in its order.
const std::vector<Preset>& presets();
const Preset* find_preset(std::string_view name, std::string_view variant);
/// "snapkv:official", or "snapkv" for a bare preset.
std::string preset_title(const Preset& preset);
/// Every declared key with this preset's value.
Settings preset_settings(const Preset& preset);

/// A paper or a repository that presets and kinds name as their source.
struct Source {
  std::string name;     ///< as presets name it, "SnapKV"
  std::string title;    ///< of the paper; empty: the name is all that is known
  std::string authors;  ///< as BibTeX has them
  std::string year;
  std::string paper;  ///< an arXiv number, "2404.14469", or an address; empty: none
  std::string code;   ///< address of public code; empty: none, or in kvpress
};

const std::vector<Source>& sources();
/// The sources that a preset's text names: "KVzip; shape: OpenVINO" names two.
std::vector<const Source*> sources_named(std::string_view text);
/// Such a text in Markdown: names link to their papers, "SnapKV repository" to the code.
std::string with_links(std::string_view text);
/// Letters and digits of the name in lower case, "expectedattention".
std::string bibtex_key(const Source& source);
/// An entry of a bibliography, with a line end.
std::string bibtex(const Source& source);

/// A place that a paper or its code leaves open, or prints otherwise than it can be meant, and how
/// it is read here. Printed by `kvsim policies`.
struct Note {
  std::string of;       ///< a kind ("smooth=aws"), a key ("window") or a preset ("keepkv:code")
  std::string source;   ///< paper and equation, algorithm or section; or repository
  std::string point;    ///< what is open
  std::string reading;  ///< what is done, and why
};

/// Notes of one kind, key or preset, by source; and all in the order of stages, those of presets
/// last.
std::vector<const Note*> notes_of(std::string_view of);
std::vector<const Note*> all_notes();

}  // namespace kvsim
