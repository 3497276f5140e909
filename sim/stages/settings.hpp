#pragma once
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "sim/core/decimal.hpp"

namespace kvsim {

class Kind;

/// "a b  c" -> {a, b, c}.
std::vector<std::string> split_words(const char* text);

/// A declared parameter by its number, which is what values are read by while a policy runs. A
/// declaration is one (parameter.hpp); a key's name finds it, which takes a look-up of text.
class Key {
 public:
  explicit Key(size_t number) : number_(number) {}
  Key(std::string_view name);  ///< throws when no such key is declared
  Key(const char* name) : Key(std::string_view(name)) {}
  Key(const std::string& name) : Key(std::string_view(name)) {}
  size_t number() const { return number_; }

 private:
  size_t number_;
};

/// One policy record, compiled: every value is parsed, and every kind found, when it is set. Texts
/// are canonical, their type and range checked against the parameter's declaration (parameter.hpp).
/// To read a key that was never set is a programmer's mistake and throws.
class Settings {
 public:
  void set(Key key, std::string text);
  /// Values of these keys alone: code that is given them can read no others.
  Settings only(const std::set<std::string>& keys) const;
  /// All texts, by key.
  std::map<std::string, std::string> values() const;

  const std::string& text(Key key) const { return at(key).text; }
  bool is(Key key, std::string_view value) const { return text(key) == value; }
  bool is_none(Key key) const { return at(key).is_none; }
  bool flag(Key key) const { return at(key).whole != 0; }
  int64_t count(Key key) const { return at(key).whole; }
  double real(Key key) const { return at(key).real; }
  Decimal decimal(Key key) const { return at(key).decimal; }
  /// A word as an enumeration whose values stand in the order of the declared words.
  template <class Word>
  Word word(Key key) const {
    return static_cast<Word>(at(key).whole);
  }
  /// An integer is a count; a number with a decimal point is that fraction of `whole`, floored.
  int64_t share(Key key, int64_t whole) const;
  bool is_fraction(Key key) const { return at(key).is_fraction; }
  /// "a+b+c" -> {a, b, c}; "none" -> {}.
  std::vector<std::string> list(Key key) const;
  const Kind& kind(Key key) const { return *at(key).kind; }

 private:
  struct Value {
    bool is_set = false;
    bool is_none = false;
    bool is_fraction = false;  ///< a share with a decimal point
    std::string text;
    int64_t whole = 0;  ///< a count, a flag, or the number of a word among its words
    double real = 0;
    Decimal decimal;
    const Kind* kind = nullptr;
  };
  const Value& at(Key key) const;

  std::vector<Value> values_;  // by number of the key
};

}  // namespace kvsim
