#include "sim/stages/estimate/estimate.hpp"

namespace kvsim {
namespace keys {

const Declare estimate_window("estimate_window", "share >= 1 queries", "32",
                              "newest queries that an estimate starts from");

}  // namespace keys

}  // namespace kvsim
