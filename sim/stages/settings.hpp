#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "sim/core/decimal.hpp"

namespace kvsim {

/// The values of one policy record, read by the stages. Values are canonical texts whose type and
/// range were checked against the parameter's declaration (parameter.hpp) when they were set.
class Settings {
 public:
  void set(const std::string& key, std::string value) { values_[key] = std::move(value); }
  const std::map<std::string, std::string>& values() const { return values_; }

  const std::string& text(std::string_view key) const;
  bool is(std::string_view key, std::string_view value) const { return text(key) == value; }
  bool flag(std::string_view key) const { return is(key, "yes"); }
  int64_t count(std::string_view key) const;
  double real(std::string_view key) const;
  Decimal decimal(std::string_view key) const;
  /// An integer is a count; a number with a decimal point is that fraction of `whole`, floored.
  int64_t share(std::string_view key, int64_t whole) const;
  bool is_fraction(std::string_view key) const;
  /// "a+b+c" -> {a, b, c}; "none" -> {}.
  std::vector<std::string> list(std::string_view key) const;

 private:
  std::map<std::string, std::string> values_;
};

}  // namespace kvsim
