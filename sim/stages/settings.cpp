#include "sim/stages/settings.hpp"

#include <stdexcept>

namespace kvsim {

const std::string& Settings::text(std::string_view key) const {
  const auto found = values_.find(std::string(key));
  if (found == values_.end()) throw std::logic_error("no such key: " + std::string(key));
  return found->second;
}

int64_t Settings::count(std::string_view key) const { return std::stoll(text(key)); }

Decimal Settings::decimal(std::string_view key) const {
  const auto decimal = Decimal::parse(text(key));
  if (!decimal) throw std::logic_error("not a number: " + std::string(key));
  return *decimal;
}

double Settings::real(std::string_view key) const { return decimal(key).value(); }

bool Settings::is_fraction(std::string_view key) const {
  return text(key).find('.') != std::string::npos;
}

int64_t Settings::share(std::string_view key, int64_t whole) const {
  return is_fraction(key) ? decimal(key).floor_times(whole) : count(key);
}

std::vector<std::string> Settings::list(std::string_view key) const {
  std::vector<std::string> items;
  const std::string& all = text(key);
  if (all == "none") return items;
  for (size_t begin = 0; begin <= all.size();) {
    const size_t end = std::min(all.find('+', begin), all.size());
    items.push_back(all.substr(begin, end - begin));
    begin = end + 1;
  }
  return items;
}

}  // namespace kvsim
