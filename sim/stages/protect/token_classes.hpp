#pragma once
#include "sim/stages/kind.hpp"
#include "sim/stages/scored_layer.hpp"

namespace kvsim {

/// FastGen's classes that a token's text decides (policies.md 6).
enum class TokenClass : uint8_t { other, special, punctuation };

/// Special: `<|...|>`, or one name in <> or [] (`<s>`, `</s>`, `[INST]`); punctuation: nothing but
/// punctuation of ASCII, Unicode's General Punctuation (U+2010 to U+205E) or CJK and full-width
/// forms of it. Blanks around the text do not count; a blank text is neither.
TokenClass token_class(std::string_view text);
/// Of the first `count` texts, as ScoredLayer holds them.
std::vector<uint8_t> token_classes(std::span<const std::string> texts, int64_t count);

/// Entries of a range in FastGen's order: special, punctuation, the frequent ones, the local ones.
struct ClassOrder {
  std::vector<uint32_t> entries;  ///< each once, at its first class
  std::array<int64_t, 4> ends{};  ///< entries[0, ends[c]) are classes 0..c
};
/// Frequent: the best floor(class_frequent * size) candidates by score (equal: the more recent),
/// best first; local: the newest floor(class_local * size) entries, newest first; the others in
/// ascending position.
ClassOrder class_order(const Settings& settings, const ScoredLayer& scored, int64_t owner,
                       Range range);

}  // namespace kvsim
