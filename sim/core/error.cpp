#include "sim/core/error.hpp"

#include <algorithm>
#include <utility>

namespace kvsim {
namespace {

std::string one_line(const Error::Parts& p) {
  std::string text = p.where;
  auto append = [&text](const char* separator, const std::string& part) {
    if (!text.empty()) text += separator;
    text += part;
  };
  if (!p.what.empty()) append(": ", p.what);
  if (!p.found.empty()) append(": ", "found " + p.found);
  if (!p.expected.empty()) append(p.found.empty() ? ": " : ", ", "expected " + p.expected);
  if (!p.hint.empty()) text += " (" + p.hint + ")";
  for (char& c : text)
    if (c == '\n' || c == '\r') c = ' ';
  return text;
}

/// Edits (insert, delete, replace, swap of neighbours) that turn a into b.
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> before(b.size() + 1), last(b.size() + 1), now(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) last[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    now[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replace = last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      now[j] = std::min({replace, last[j] + 1, now[j - 1] + 1});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        now[j] = std::min(now[j], before[j - 2] + 1);
    }
    std::swap(before, last);
    std::swap(last, now);
  }
  return last[b.size()];
}

/// Words of the field for one thing, each group by spaces.
constexpr std::string_view kSameMeaning[] = {
    " mean avg average ",    " max maximum peak ", " min minimum ", " none off no disabled null ",
    " sum total ",           " overwrite force ",  " out output ",  " budget budgets ratio ",
    " policy press method ", " quantize quant "};

bool same_meaning(std::string_view a, std::string_view b) {
  const auto among = [](std::string_view group, std::string_view word) {
    return group.find(" " + std::string(word) + " ") != group.npos;
  };
  return std::ranges::any_of(
      kSameMeaning, [&](std::string_view group) { return among(group, a) && among(group, b); });
}

}  // namespace

Error::Error(Fault fault, Parts parts)
    : std::runtime_error(one_line(parts)), fault_(fault), parts_(std::move(parts)) {}

void usage_error(Error::Parts parts) { throw Error(Fault::usage, std::move(parts)); }
void bad_data(Error::Parts parts) { throw Error(Fault::bad_data, std::move(parts)); }

std::string either(const std::vector<std::string>& names) {
  std::string text;
  for (size_t i = 0; i < names.size(); ++i)
    text += (i == 0 ? "" : i + 1 == names.size() ? " or " : ", ") + names[i];
  return text;
}

std::vector<std::string> nearest_names(std::string_view text, const std::vector<std::string>& names,
                                       size_t most) {
  std::vector<std::pair<size_t, std::string>> near;
  for (const std::string& name : names) {
    const bool begins = text.size() >= 2 && name.starts_with(text);
    const size_t distance = same_meaning(text, name) ? 0 : begins ? 1 : edit_distance(text, name);
    if (distance <= std::max<size_t>(1, std::min(text.size(), name.size()) / 3 + 1) &&
        distance < name.size())
      near.emplace_back(distance, name);
  }
  std::stable_sort(near.begin(), near.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  if (!near.empty() && near[0].first == 0)  // of one meaning: the others only look alike
    std::erase_if(near, [](const auto& one) { return one.first > 0; });
  std::vector<std::string> result;
  for (size_t i = 0; i < near.size() && i < most; ++i) result.push_back(near[i].second);
  return result;
}

std::string did_you_mean(std::string_view text, const std::vector<std::string>& names) {
  const std::vector<std::string> near = nearest_names(text, names);
  if (near.empty()) return {};
  return "did you mean " + either(near) + "?";
}

}  // namespace kvsim
