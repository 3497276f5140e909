#pragma once
#include <string>
#include <vector>

namespace kvsim::cli {

/// The items of lists that were given to --NAME, in typed order, each once. One that is not `known`
/// is a usage error that tells what there is: `shown`.
std::vector<std::string> chosen_names(const std::vector<std::string>& lists,
                                      const std::string& name,
                                      const std::vector<std::string>& known,
                                      const std::vector<std::string>& shown);

}  // namespace kvsim::cli
