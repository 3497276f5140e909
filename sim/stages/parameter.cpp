#include "sim/stages/parameter.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <deque>
#include <map>
#include <stdexcept>

#include "sim/core/decimal.hpp"
#include "sim/core/error.hpp"
#include "sim/core/nearest.hpp"
#include "sim/stages/kind.hpp"

namespace kvsim {
namespace {

/// All declared parameters, by number, by place and by key.
struct Declared {
  std::deque<Parameter> all;
  std::vector<const Parameter*> by_place;
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
  if (parameter.place <= 0)
    throw std::logic_error("parameter " + parameter.key + " has no .place in canonical records");
  const auto at = std::ranges::lower_bound(known.by_place, parameter.place, {}, &Parameter::place);
  if (at != known.by_place.end() && (*at)->place == parameter.place)
    throw std::logic_error(fmt::format("parameters {} and {} have the same .place in canonical "
                                       "records, {}: give one of them another",
                                       (*at)->key, parameter.key, parameter.place));
  parameter.number = known.all.size();
  Parameter& kept = known.all.emplace_back(std::move(parameter));
  known.by_place.insert(at, &kept);
  known.by_key.emplace(kept.key, &kept);
  return kept.number;
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

Declare::Declare(Parameter parameter) : Key(declare(std::move(parameter))) {}

const Parameter& parameter_of(Key key) { return declared().all.at(key.number()); }

const Parameter* find_parameter(std::string_view key) {
  const auto found = declared().by_key.find(key);
  return found == declared().by_key.end() ? nullptr : found->second;
}

std::vector<const Parameter*> parameters() { return declared().by_place; }

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
