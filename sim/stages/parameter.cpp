#include "sim/stages/parameter.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <deque>
#include <filesystem>
#include <iterator>
#include <map>
#include <sstream>
#include <stdexcept>
#include <tuple>

#include "sim/core/decimal.hpp"
#include "sim/core/error.hpp"
#include "sim/stages/kind.hpp"

namespace kvsim {
namespace {

/// Folders of stages in the order in which a policy runs them, and the sections of docs/policies.md
/// that describe their keys. Keys declared elsewhere come last.
struct StagePlace {
  std::string_view folder;
  const char* section;
};
constexpr StagePlace kStages[] = {{"stages", "2"},      {"queries", "5.1"}, {"indicator", "5.2"},
                                  {"aggregate", "5.4"}, {"join", "5.4"},    {"smooth", "5.5"},
                                  {"group", "5.6"},     {"memory", "5.6"},  {"redundancy", "5.6"},
                                  {"prior", "5.7"},     {"weight", "5.8"},  {"normalize", "5.8"},
                                  {"shape", "5.9"},     {"protect", "6"},   {"allocate", "7"},
                                  {"constrain", "8"},   {"merge", "9"},     {"estimate", "9"},
                                  {"quantize", "11"},   {"schedule", "12"}, {"", ""}};

size_t stage_of(std::string_view file) {
  const std::string folder = std::filesystem::path(file).parent_path().filename().string();
  size_t at = 0;
  while (at + 1 < std::size(kStages) && kStages[at].folder != folder) ++at;
  return at;
}

/// All declared parameters, by number, in canonical order and by key. A stage's own key comes
/// before those of its kinds.
struct Declared {
  std::deque<Parameter> all;
  std::vector<const Parameter*> in_order;
  std::map<std::string, Parameter*, std::less<>> by_key;
};

Declared& declared() {
  static Declared parameters;
  return parameters;
}

size_t declare(Parameter parameter) {
  Declared& known = declared();
  if (known.by_key.contains(parameter.key))
    throw std::logic_error("parameter declared twice: " + parameter.key);
  const auto place = [](const Parameter* p) {
    return std::tuple(p->stage, p->type != ValueType::kind, std::string_view(p->key));
  };
  parameter.number = known.all.size();
  Parameter& kept = known.all.emplace_back(std::move(parameter));
  known.in_order.insert(std::ranges::lower_bound(known.in_order, place(&kept), {}, place), &kept);
  known.by_key.emplace(kept.key, &kept);
  return kept.number;
}

/// Reads what a key takes off its declaration.
void read_values(Parameter& p, std::string_view values) {
  static const std::map<std::string_view, ValueType> kTypes = {
      {"count", ValueType::count}, {"odd", ValueType::count}, {"number", ValueType::real},
      {"share", ValueType::share}, {"flag", ValueType::flag}, {"kind", ValueType::kind},
      {"text", ValueType::text},   {"file", ValueType::text}};
  std::vector<std::string> words = split_words(std::string(values).c_str());
  if (std::ranges::count(words, "|") > 0) {
    p.type = ValueType::word;
    std::ranges::remove_copy(words, std::back_inserter(p.words), "|");
    return;
  }
  const std::string_view none = " or none";
  p.may_be_none = values.ends_with(none);
  if (p.may_be_none) values.remove_suffix(none.size());
  std::istringstream text{std::string(values)};
  std::string type, sign;
  text >> type;
  const auto known = kTypes.find(type);
  if (known == kTypes.end())
    throw std::logic_error("parameter " + p.key + ": not a type of values: " + type);
  p.type = known->second;
  p.odd = type == "odd";
  p.is_file = type == "file";
  if (p.type == ValueType::count || p.type == ValueType::real || p.type == ValueType::share) {
    char mark = 0;
    text >> mark;
    if (mark == '>') {
      p.low_open = text.peek() != '=';
      if (!p.low_open) text.get();
      text >> p.low;
    } else {  // [0, 1)
      p.low_open = mark == '(';
      text >> p.low >> mark >> p.high >> mark;
      p.high_open = mark == ')';
    }
    if (!text) throw std::logic_error("parameter " + p.key + ": no range: " + std::string(values));
  }
  if (p.is_file) p.unit = "path";
  text >> p.unit;
}

std::vector<std::string> allowed_words(const Parameter& p) {
  if (p.type == ValueType::word) return p.words;
  if (p.type == ValueType::flag) return {"yes", "no"};
  std::vector<std::string> names;
  for (const auto* info : kinds_of_stage(p.key)) names.push_back(info->name);
  return names;
}

[[noreturn]] void refuse(const Parameter& p, std::string_view typed, std::string hint = "") {
  const std::string value(typed);
  usage_error({.what = "bad value of " + p.key,
               .where = fmt::format("{}={}", p.key, value),
               .found = value.empty() ? "nothing" : value,
               .expected = p.range(),
               .hint = std::move(hint)});
}

void check_number(const Parameter& p, std::string_view typed, double value) {
  const bool below = value < p.low || (p.low_open && value == p.low);
  const bool above = value > p.high || (p.high_open && value == p.high);
  if (below || above) refuse(p, typed);
}

bool is_integer(std::string_view text) {
  return !text.empty() && text.size() <= 15 &&
         text.find_first_not_of("0123456789") == std::string_view::npos;
}

std::string canonical_number(const Parameter& p, std::string_view typed) {
  const bool integer = is_integer(typed);
  if (p.type == ValueType::count || (p.type == ValueType::share && integer)) {
    if (!integer) refuse(p, typed);
    const int64_t count = std::stoll(std::string(typed));
    check_number(p, typed, static_cast<double>(count));
    if (p.odd && count % 2 == 0) refuse(p, typed);
    return std::to_string(count);
  }
  const auto decimal = Decimal::parse(typed);
  if (!decimal || typed.find('%') != std::string_view::npos) refuse(p, typed);
  const double value = decimal->value();
  if (p.type == ValueType::share) {
    if (typed.find('.') == std::string_view::npos || value < 0 || value > 1) refuse(p, typed);
    const std::string text = decimal->text();  // a fraction keeps its point: 1.0 is not 1 entry
    return text.find('.') == std::string::npos ? text + ".0" : text;
  }
  check_number(p, typed, value);
  return decimal->text();
}

}  // namespace

std::string Parameter::range() const {
  const auto words_of = [this] {
    return fmt::format("{}", fmt::join(allowed_words(*this), " | "));
  };
  const bool bounded = high < std::numeric_limits<double>::infinity();
  std::string text;
  switch (type) {
    case ValueType::word:
    case ValueType::flag:
    case ValueType::kind: return words_of();
    case ValueType::text: return may_be_none ? "a text, or none" : "a text";
    case ValueType::count:
      text = odd ? "an odd integer" : "an integer";
      text += bounded ? fmt::format(" in [{}, {}]", low, high) : fmt::format(" >= {}", low);
      break;
    case ValueType::share:
      text = fmt::format("an integer >= {}, or a fraction of the budget with a decimal point", low);
      break;
    case ValueType::real:
      if (bounded)
        text = fmt::format("a number in {}{}, {}{}", low_open ? "(" : "[", low, high,
                           high_open ? ")" : "]");
      else
        text = fmt::format("a number {} {}", low_open ? ">" : ">=", low);
      break;
  }
  return may_be_none ? text + ", or none" : text;
}

bool nests_at_default(const Parameter& parameter, const Settings& settings) {
  return settings.is(Key(parameter.number), parameter.fallback);
}

const char* Parameter::section() const { return kStages[stage].section; }

Declare::Declare(Parameter parameter) : Key(declare(std::move(parameter))) {}

Parameter Declare::read(Name name, std::string_view values, const char* fallback,
                        const char* meaning) {
  Parameter parameter;
  parameter.key = name.key;
  parameter.fallback = fallback;
  parameter.meaning = meaning;
  parameter.stage = stage_of(name.file);
  read_values(parameter, values);
  return parameter;
}

const Parameter& parameter_of(Key key) { return declared().all.at(key.number()); }

const Parameter* find_parameter(std::string_view key) {
  const auto found = declared().by_key.find(key);
  return found == declared().by_key.end() ? nullptr : found->second;
}

std::vector<const Parameter*> parameters() { return declared().in_order; }

std::string canonical_value(const Parameter& p, std::string_view typed) {
  if (p.may_be_none && typed == "none") return "none";
  switch (p.type) {
    case ValueType::count:
    case ValueType::real:
    case ValueType::share: return canonical_number(p, typed);
    case ValueType::word:
    case ValueType::flag:
    case ValueType::kind: {
      const auto words = allowed_words(p);
      if (std::find(words.begin(), words.end(), typed) == words.end())
        refuse(p, typed, did_you_mean(typed, words));
      return std::string(typed);
    }
    case ValueType::text: break;
  }
  if (typed.empty()) refuse(p, typed);
  if (p.fault) {
    const std::string fault = p.fault(typed);
    if (!fault.empty()) refuse(p, typed, fault);
  }
  return std::string(typed);
}

}  // namespace kvsim
