#include "cli/chosen_names.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "cli/parse.hpp"
#include "sim/core/error.hpp"

namespace kvsim::cli {

std::vector<std::string> chosen_names(const std::vector<std::string>& lists,
                                      const std::string& name,
                                      const std::vector<std::string>& known,
                                      const std::vector<std::string>& shown) {
  std::vector<std::string> chosen;
  for (const std::string& list : lists) {
    for (std::string& item : split_list(list, "--" + name)) {
      if (std::ranges::find(known, item) == known.end()) {
        usage_error({.what = "unknown " + name,
                     .where = "--" + name,
                     .found = item,
                     .expected = fmt::format("some of {}", fmt::join(shown, ", ")),
                     .hint = did_you_mean(item, known)});
      }
      if (std::ranges::find(chosen, item) == chosen.end()) chosen.push_back(std::move(item));
    }
  }
  return chosen;
}

}  // namespace kvsim::cli
