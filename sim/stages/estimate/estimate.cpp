#include "sim/stages/estimate/estimate.hpp"

#include "sim/stages/merge/merge.hpp"

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

namespace kvsim::stages::estimate::estimate {
namespace {

const Declare score_estimate{
    {.key = "score_estimate",
     .place = 905,
     .type = ValueType::kind,
     .fallback = "ema",
     .meaning = "how the scores of the next queries are predicted",
     .only_with = {{"merge", [](const Kind& kind) {
                      return dynamic_cast<const Merge&>(kind).estimates() != EstimateLines::none;
                    }}}}};

}  // namespace
}  // namespace kvsim::stages::estimate::estimate
