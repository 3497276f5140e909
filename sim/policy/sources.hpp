#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace kvsim {

/// A paper or a repository that presets and kinds name as their source.
struct Source {
  std::string name;     ///< as presets name it, "SnapKV"
  std::string title;    ///< of the paper; empty: the name is all that is known
  std::string authors;  ///< as BibTeX has them
  std::string year;
  std::string paper;  ///< an arXiv number, "2404.14469", or an address; empty: none
  std::string code;   ///< address of public code; empty: none, or in kvpress
};

/// Every source, in the order of their names.
const std::vector<Source>& sources();

/// The sources that a preset's text names: "KVzip; shape: OpenVINO" names two.
std::vector<const Source*> sources_named(std::string_view text);

/// Letters and digits of the name in lower case, "expectedattention".
std::string bibtex_key(const Source& source);

/// An entry of a bibliography, with a line end.
std::string bibtex(const Source& source);

}  // namespace kvsim
