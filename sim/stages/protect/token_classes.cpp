#include "sim/stages/protect/token_classes.hpp"

#include <algorithm>
#include <cctype>

#include "sim/stages/notes.hpp"
#include "sim/stages/parameter.hpp"
#include "sim/stages/protect/protect.hpp"

namespace kvsim {
namespace {

const Declare class_frequent("class_frequent", "number [0, 1]", "0.3",
                             "share of n: entries of most attention (FastGen)", tested("0 0.1"));
const Declare class_local("class_local", "number [0, 1]", "0.3",
                          "share of n: newest entries (FastGen)", tested("0 0.15"));

bool is_blank(char c) { return std::isspace(static_cast<unsigned char>(c)) != 0; }

std::string_view stripped(std::string_view text) {
  while (!text.empty() && is_blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_blank(text.back())) text.remove_suffix(1);
  return text;
}

/// <|anything|>, <name>, </name>, [NAME] or [/NAME].
bool is_special(std::string_view text) {
  if (text.size() < 3) return false;
  const bool angle = text.front() == '<' && text.back() == '>';
  const bool square = text.front() == '[' && text.back() == ']';
  if (!angle && !square) return false;
  std::string_view name = text.substr(1, text.size() - 2);
  if (angle && name.size() > 2 && name.front() == '|' && name.back() == '|') return true;
  if (name.front() == '/') name.remove_prefix(1);
  return !name.empty() && std::ranges::all_of(name, [&](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return c == '_' || (square ? std::isupper(byte) != 0 : std::isalnum(byte) != 0);
  });
}

/// The code point at the start of valid UTF-8, which is taken off.
uint32_t take_code_point(std::string_view& text) {
  const auto first = static_cast<unsigned char>(text.front());
  const size_t length = first < 0x80 ? 1 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
  uint32_t point = length == 1 ? first : first & (0x7Fu >> length);
  for (size_t at = 1; at < std::min(length, text.size()); ++at)
    point = point << 6 | (static_cast<unsigned char>(text[at]) & 0x3Fu);
  text.remove_prefix(std::min(length, text.size()));
  return point;
}

bool is_punctuation(uint32_t point) {
  if (point < 0x80) return std::ispunct(static_cast<int>(point)) != 0;
  const auto within = [&](uint32_t low, uint32_t high) { return point >= low && point <= high; };
  return point == 0xA1 || point == 0xAB || point == 0xB7 || point == 0xBB || point == 0xBF ||
         within(0x2010, 0x205E) || within(0x3001, 0x3003) || within(0x3008, 0x3011) ||
         within(0xFF01, 0xFF0F) || within(0xFF1A, 0xFF20) || within(0xFF3B, 0xFF40) ||
         within(0xFF5B, 0xFF65);
}

}  // namespace

TokenClass token_class(std::string_view text) {
  text = stripped(text);
  if (text.empty()) return TokenClass::other;
  if (is_special(text)) return TokenClass::special;
  while (!text.empty())
    if (!is_punctuation(take_code_point(text))) return TokenClass::other;
  return TokenClass::punctuation;
}

std::vector<uint8_t> token_classes(std::span<const std::string> texts, int64_t count) {
  std::vector<uint8_t> classes;
  for (const std::string& text : texts.first(static_cast<size_t>(count)))
    classes.push_back(static_cast<uint8_t>(token_class(text)));
  return classes;
}

ClassOrder class_order(const Settings& settings, const ScoredLayer& scored, int64_t owner,
                       Range range) {
  ClassOrder order;
  std::vector<uint8_t> taken(static_cast<size_t>(scored.entries()), 0);
  const auto take = [&](uint32_t i) {
    if (!taken[i]) order.entries.push_back(i);
    taken[i] = 1;
  };
  const auto end_class = [&](size_t c) { order.ends[c] = std::ssize(order.entries); };
  for (const TokenClass wanted : {TokenClass::special, TokenClass::punctuation}) {
    for (int64_t i = range.begin; i < range.end; ++i)
      if (scored.token_class[static_cast<size_t>(i)] == static_cast<uint8_t>(wanted))
        take(static_cast<uint32_t>(i));
    end_class(wanted == TokenClass::special ? 0 : 1);
  }
  std::vector<uint32_t> by_score;
  for (int64_t i = range.begin; i < range.end; ++i)
    if (scored.candidate[static_cast<size_t>(i)]) by_score.push_back(static_cast<uint32_t>(i));
  const auto score = scored.score.row(owner);
  std::ranges::sort(by_score, [&](uint32_t a, uint32_t b) {
    return score[a] != score[b] ? score[a] > score[b] : a > b;
  });
  const int64_t frequent = std::min(settings.decimal(class_frequent).floor_times(range.size()),
                                    std::ssize(by_score));
  for (int64_t at = 0; at < frequent; ++at) take(by_score[static_cast<size_t>(at)]);
  end_class(2);
  const int64_t local = settings.decimal(class_local).floor_times(range.size());
  for (int64_t i = range.end; i-- > range.end - local;) take(static_cast<uint32_t>(i));
  end_class(3);
  return order;
}

}  // namespace kvsim

namespace kvsim::stages::protect::token_classes {
namespace {

/// FastGen: entries go by what their tokens are.
class ByTokenClass : public Stage1 {
 public:
  ByTokenClass()
      : Stage1({"stage1", "token-class",
                "special tokens, punctuation, the frequent, the newest, in this order", "FastGen",
                "class_frequent class_local", "tokens/text"}) {}
  bool uses_token_classes() const override { return true; }
  std::vector<uint32_t> after_allocate(const Stage1Request& r) const override {
    std::vector<uint32_t> forced = class_order(*r.settings, *r.scored, r.owner, r.range).entries;
    std::erase_if(forced, [&](uint32_t i) { return (*r.is_protected)[i] != 0; });
    const int64_t places = std::max<int64_t>(0, r.budget - r.protected_count);
    if (std::ssize(forced) > places) forced.resize(static_cast<size_t>(places));
    return forced;
  }
};
const Register<Stage1, ByTokenClass> by_token_class;
const DeclareNote by_token_class_note(
    "stage1=token-class", "FastGen",
    "which tokens are special is the tokenizer's business, which a trace does not hold",
    "a token whose text is <|...|>, <name> or [NAME]; the sinks of a prompt without such tokens "
    "are `sinks`");

}  // namespace
}  // namespace kvsim::stages::protect::token_classes
