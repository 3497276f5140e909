#pragma once
#include <string>
#include <vector>

#include "run/sweep/sweep_best.hpp"

/// The table of best settings that `kvsim sweep` ends with, in its forms.
namespace kvsim::cli {

/// For a person: the rows of these measures.
std::string best_text(const BestTable& table, const std::vector<std::string>& measures);
/// The same to paste.
PaperTable best_paper(const BestTable& table, const std::vector<std::string>& measures);
std::string best_csv(const BestTable& table);
std::string best_json(const BestTable& table);

}  // namespace kvsim::cli
