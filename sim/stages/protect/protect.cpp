#include <cctype>

#include "sim/stages/indicator/indicator.hpp"
#include "sim/stages/merge/merge.hpp"
#include "sim/stages/stages.hpp"

namespace kvsim::keys {

const Declare sinks("sinks", "count >= 0 entries", "0", "first entries that are protected", always,
                    only_with(selects_entries_if), lets_nest, tested("1 3"));
const Declare recent("recent", "share >= 0 entries", "0",
                     "newest entries that are protected, but scored all the same", always,
                     only_with(selects_entries_if), tested("2 0.3"));
const Declare whitelist("whitelist", "text spans or none", "none",
                        "spans or ranges a-b joined by + that every head keeps", always,
                        only_with(selects_entries_if), checked_by(span_list_fault), lets_nest,
                        tested("13-15 middle"));
const Declare first_layer_recent(
    "first_layer_recent", "share >= 0 entries", "0",
    "newest entries that the model's first layer protects, where more than `recent`", always,
    only_with(selects_entries_if), tested("4 0.6"));
const Declare std_keep("std_keep", "number [0, 1]", "0",
                       "share of B for entries of largest deviation (RoCo)", always,
                       only_with(scores_rows_if, selects_entries_if),
                       lets_nest_if(nests_at_default), tested("0.4"));
const Declare protected_rank("protected_rank", "guaranteed | layer-max", "guaranteed",
                             "protected entries are kept, or compete at the layer's largest score");

}  // namespace kvsim::keys

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

int64_t newest_protected(const Settings& settings, int layer, int64_t budget) {
  const int64_t recent = settings.share(keys::recent, budget);
  return layer > 0 ? recent : std::max(recent, settings.share(keys::first_layer_recent, budget));
}

std::vector<uint32_t> protected_entries(const ProtectRequest& request) {
  const Settings& settings = *request.settings;
  const Range range = request.range;
  std::vector<uint32_t> granted;
  std::vector<uint8_t> taken(range.size(), 0);
  const auto grant = [&](int64_t i) {
    uint8_t& mine = taken[i - range.begin];
    if (!mine) granted.push_back(static_cast<uint32_t>(i));
    mine = 1;
  };
  for (const Range& wanted : *request.whitelist)
    for (int64_t i = std::max(wanted.begin, range.begin); i < std::min(wanted.end, range.end); ++i)
      grant(i);
  if (request.first)
    for (int64_t i = range.begin; i < std::min(settings.count(keys::sinks), range.end); ++i)
      grant(i);
  const int64_t recent = request.last ? newest_protected(settings, request.layer, request.budget)
                                      : 0;
  const int64_t newest = std::max(request.window, recent);
  for (int64_t i = range.end; i-- > std::max(range.begin, range.end - newest);) grant(i);
  if (request.deviation.empty()) return granted;

  const int64_t spread = settings.decimal(keys::std_keep).floor_times(request.budget) - recent;
  std::vector<uint32_t> others;
  for (int64_t i = range.begin; i < range.end; ++i)
    if (!taken[i - range.begin] && request.candidate[i]) others.push_back(static_cast<uint32_t>(i));
  const auto count = static_cast<size_t>(std::clamp<int64_t>(spread, 0, std::ssize(others)));
  std::partial_sort(others.begin(), others.begin() + static_cast<int64_t>(count), others.end(),
                    best_first(request.deviation));
  granted.insert(granted.end(), others.begin(), others.begin() + static_cast<int64_t>(count));
  return granted;
}

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
  for (const std::string& text : texts.first(count))
    classes.push_back(static_cast<uint8_t>(token_class(text)));
  return classes;
}

ClassOrder class_order(const Settings& settings, const ScoredLayer& scored, int64_t owner,
                       Range range) {
  ClassOrder order;
  std::vector<uint8_t> taken(scored.entries(), 0);
  const auto take = [&](uint32_t i) {
    if (!taken[i]) order.entries.push_back(i);
    taken[i] = 1;
  };
  const auto end_class = [&](size_t c) { order.ends[c] = std::ssize(order.entries); };
  for (const TokenClass wanted : {TokenClass::special, TokenClass::punctuation}) {
    for (int64_t i = range.begin; i < range.end; ++i)
      if (scored.token_class[i] == static_cast<uint8_t>(wanted)) take(static_cast<uint32_t>(i));
    end_class(wanted == TokenClass::special ? 0 : 1);
  }
  std::vector<uint32_t> by_score;
  for (int64_t i = range.begin; i < range.end; ++i)
    if (scored.candidate[i]) by_score.push_back(static_cast<uint32_t>(i));
  const auto score = scored.score.row(owner);
  std::ranges::sort(by_score, best_first(score));
  const int64_t frequent = std::min(settings.decimal(class_frequent).floor_times(range.size()),
                                    std::ssize(by_score));
  for (int64_t at = 0; at < frequent; ++at) take(by_score[at]);
  end_class(2);
  const int64_t local = settings.decimal(class_local).floor_times(range.size());
  for (int64_t i = range.end; i-- > range.end - local;) take(static_cast<uint32_t>(i));
  end_class(3);
  return order;
}

}  // namespace kvsim

namespace kvsim::stages::protect::protect {

const Declare stage1("stage1", "kind", "none", "entries forced before the ranking by score",
                     only_with(selects_entries_if));
const Declare stage1_ratio("stage1_ratio", "number [0, 1]", "0.5",
                           "share of the head's budget forced by the unweighted score",
                           tested("0 0.25 0.8"));
const Declare stage1_mass("stage1_mass", "number [0, 1]", "0.9",
                          "share of the head's attention that the forced entries hold",
                          tested("0.5 0.99"));
const Declare stage1_bias(
    "stage1_bias", "shifted | window", "shifted",
    "what is taken off stage1_mass: attention on the last candidates, or on the window");

enum class Bias { shifted, window };  // words of stage1_bias

/// CriticalKV Algorithm 1: half of the budget by attention alone.
struct Ratio : Stage1 {
  Ratio()
      : Stage1({"ratio", "the best by the score before `weight`, protected ones counted in",
                "CriticalKV", "stage1_ratio"}) {}
  bool uses_unweighted() const override { return true; }
  std::vector<uint32_t> after_allocate(const Stage1Request& r) const override {
    const Settings& settings = *r.settings;
    int64_t places = settings.decimal(stage1_ratio).floor_times(r.budget);
    const bool head_budget = settings.word<AllocateScore>(keys::allocate_score) ==
                             AllocateScore::unweighted;
    if (rounds_like_kvpress(settings) && !r.budget_is_count && !head_budget) {
      const double phi = settings.real(stage1_ratio);
      places = phi == 0 ? 0 : std::max<int64_t>(1, static_cast<int64_t>(r.kvpress_kept * phi));
    }
    std::vector<uint32_t> forced;
    places -= r.protected_count;
    for (size_t at = 0; at < r.by_unweighted->size() && places > 0; ++at) {
      const uint32_t i = (*r.by_unweighted)[at];
      if (!r.range.contains(i) || (*r.is_protected)[i]) continue;
      forced.push_back(i);
      --places;
    }
    return forced;
  }
};

/// DefensiveKV's published code: the entries that hold most of the head's attention.
struct Mass : Stage1 {
  Mass()
      : Stage1({"mass", "the entries that hold stage1_mass of the head's attention",
                "DefensiveKV code", "stage1_mass stage1_bias"}) {}
  bool uses_mass() const override { return true; }
  std::vector<uint32_t> before_allocate(const Stage1Request& r) const override {
    const ScoredLayer& scored = *r.scored;
    const Range candidates = scored.segments.at(0).candidates;
    const double bias = r.settings->word<Bias>(stage1_bias) == Bias::shifted
                            ? scored.mass_before_window
                            : scored.mass_of_window;
    const double limit = r.settings->real(stage1_mass) - bias;
    const auto mass = scored.mass.row(r.owner);
    double total = 0;
    for (int64_t i = candidates.begin; i < candidates.end; ++i) total += mass[i];
    auto order = ascending(candidates.size(), static_cast<uint32_t>(candidates.begin));
    std::ranges::sort(order, best_first(mass));
    const int64_t most = std::min(std::max<int64_t>(0, r.mass_cap), r.budget - r.protected_count);
    std::vector<uint32_t> forced;
    double sum = 0;
    for (uint32_t i : order) {
      sum += total > 0 ? mass[i] / total : 0;
      if (sum >= limit || std::ssize(forced) >= most) break;
      forced.push_back(i);
    }
    std::erase_if(forced, [&](uint32_t i) { return (*r.is_protected)[i] != 0; });
    return forced;
  }
};

/// FastGen: entries go by what their tokens are.
struct ByTokenClass : Stage1 {
  ByTokenClass()
      : Stage1({"token-class",
                "special tokens, punctuation, the frequent, the newest, in this order", "FastGen",
                "class_frequent class_local", "tokens/text"}) {}
  bool uses_token_classes() const override { return true; }
  std::vector<uint32_t> after_allocate(const Stage1Request& r) const override {
    std::vector<uint32_t> forced = class_order(*r.settings, *r.scored, r.owner, r.range).entries;
    std::erase_if(forced, [&](uint32_t i) { return (*r.is_protected)[i] != 0; });
    const int64_t places = std::max<int64_t>(0, r.budget - r.protected_count);
    if (std::ssize(forced) > places) forced.resize(places);
    return forced;
  }
};
const RegisterNone<Stage1> none("nothing is forced");
const Register<Stage1, Ratio, Mass, ByTokenClass> registered;

}  // namespace kvsim::stages::protect::protect
