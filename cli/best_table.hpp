#pragma once
#include <string>

#include "run/sweep_best.hpp"

/// The table of best settings that `kvsim sweep` ends with, in its three forms.
namespace kvsim::cli {

std::string best_text(const BestTable& table);
std::string best_csv(const BestTable& table);
std::string best_json(const BestTable& table);

}  // namespace kvsim::cli
