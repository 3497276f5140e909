#include "sim/stages/estimate/estimate.hpp"

namespace kvsim {
namespace keys {

const Declare estimate_window{{.key = "estimate_window",
                               .place = 907,
                               .type = ValueType::share,
                               .fallback = "32",
                               .meaning = "newest queries that an estimate starts from",
                               .unit = "queries",
                               .low = 1}};

}  // namespace keys

}  // namespace kvsim
