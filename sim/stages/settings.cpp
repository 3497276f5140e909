#include "sim/stages/settings.hpp"

#include <algorithm>
#include <iterator>
#include <sstream>
#include <stdexcept>

#include "sim/stages/kind.hpp"
#include "sim/stages/parameter.hpp"

namespace kvsim {

Key::Key(std::string_view name) {
  const Parameter* parameter = find_parameter(name);
  if (!parameter) throw std::logic_error("no such key: " + std::string(name));
  number_ = parameter->number;
}

void Settings::set(Key key, std::string text) {
  if (values_.size() <= key.number()) values_.resize(key.number() + 1);
  const Parameter& parameter = parameter_of(key);
  Value value;
  value.is_set = true;
  value.is_none = text == "none";
  value.is_fraction = parameter.type == ValueType::share && text.find('.') != std::string::npos;
  if (parameter.type == ValueType::kind) {
    value.kind = &find_kind(parameter.key, text);
  } else if (parameter.type == ValueType::flag) {
    value.whole = text == "yes";
  } else if (parameter.type == ValueType::word) {
    value.whole = std::ranges::find(parameter.words, text) - parameter.words.begin();
  } else if (parameter.type != ValueType::text && !value.is_none) {
    const auto decimal = Decimal::parse(text);
    if (!decimal) throw std::logic_error("not a number: " + parameter.key);
    value.decimal = *decimal;
    value.real = decimal->value();
    if (parameter.type != ValueType::real && !value.is_fraction)
      value.whole = decimal->floor_times(1);
  }
  value.text = std::move(text);
  values_[key.number()] = std::move(value);
}

const Settings::Value& Settings::at(Key key) const {
  if (key.number() >= values_.size() || !values_[key.number()].is_set)
    throw std::logic_error("no such key: " + parameter_of(key).key);
  return values_[key.number()];
}

Settings Settings::only(const std::set<std::string>& keys) const {
  Settings some;
  some.values_.resize(values_.size());
  for (const Key key : keys) some.values_[key.number()] = at(key);
  return some;
}

std::map<std::string, std::string> Settings::values() const {
  std::map<std::string, std::string> texts;
  for (size_t number = 0; number < values_.size(); ++number)
    if (values_[number].is_set) texts[parameter_of(Key(number)).key] = values_[number].text;
  return texts;
}

int64_t Settings::share(Key key, int64_t whole) const {
  const Value& value = at(key);
  return value.is_fraction ? value.decimal.floor_times(whole) : value.whole;
}

std::vector<std::string> Settings::list(Key key) const {
  std::vector<std::string> items;
  const std::string& all = text(key);
  if (is_none(key)) return items;
  for (size_t begin = 0; begin <= all.size();) {
    const size_t end = std::min(all.find('+', begin), all.size());
    items.push_back(all.substr(begin, end - begin));
    begin = end + 1;
  }
  return items;
}

std::vector<std::string> split_words(const char* text) {
  std::istringstream words(text);
  return {std::istream_iterator<std::string>(words), {}};
}

}  // namespace kvsim
