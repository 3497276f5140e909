#include "sim/stages/estimate/estimate.hpp"

#include "sim/stages/parameter.hpp"

namespace kvsim {
namespace {

const Declare score_estimate{{.key = "score_estimate",
                              .place = 905,
                              .type = ValueType::kind,
                              .fallback = "ema",
                              .meaning = "how the scores of the next queries are predicted"}};
const Declare estimate_window{{.key = "estimate_window",
                               .place = 907,
                               .type = ValueType::share,
                               .fallback = "32",
                               .meaning = "newest queries that an estimate starts from",
                               .unit = "queries",
                               .low = 1}};

}  // namespace
}  // namespace kvsim
