#include "sim/stages/aggregate/aggregate.hpp"

#include "sim/stages/common_keys.hpp"
#include "sim/stages/indicator/indicator.hpp"

namespace kvsim {
namespace keys {

const Declare order("order", "asg | ags | sag | sga | gas | gsa", "asg",
                    "order of smooth (s), aggregate (a) and group (g)", always,
                    only_with(observes_if), lets_nest);
const Declare ema_alpha("ema_alpha", "number (0, 1]", "0.3",
                        "weight of the newest row (ReST-KV Eq. 9)", tested("0.1 0.55 1"));

}  // namespace keys

}  // namespace kvsim

namespace kvsim::stages::aggregate::aggregate {
namespace {

const Declare aggregate("aggregate", "kind", "mean", "how the observing queries' rows become one",
                        only_with(scores_rows_if));

}  // namespace
}  // namespace kvsim::stages::aggregate::aggregate
