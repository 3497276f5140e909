#include "sim/stages/aggregate/aggregate.hpp"

#include "sim/stages/indicator/indicator.hpp"

namespace kvsim {
namespace keys {

const Declare ema_alpha{{.key = "ema_alpha",
                         .place = 543,
                         .type = ValueType::real,
                         .fallback = "0.3",
                         .meaning = "weight of the newest row (ReST-KV Eq. 9)",
                         .low = 0,
                         .high = 1,
                         .low_open = true,
                         .test_values = {"0.1", "0.55", "1"}}};

}  // namespace keys

}  // namespace kvsim

namespace kvsim::stages::aggregate::aggregate {
namespace {

const Declare aggregate{{.key = "aggregate",
                         .place = 541,
                         .type = ValueType::kind,
                         .fallback = "mean",
                         .meaning = "how the observing queries' rows become one",
                         .only_with = {scores_rows_if}}};

}  // namespace
}  // namespace kvsim::stages::aggregate::aggregate
