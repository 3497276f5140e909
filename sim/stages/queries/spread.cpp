#include <algorithm>

#include "sim/stages/parameter.hpp"
#include "sim/stages/queries/queries.hpp"

namespace kvsim::stages::queries::spread {
namespace {

const Declare spread_queries("spread_queries", "count >= 1 queries", "256",
                             "how many queries observe, evenly over the prompt", tested("1 7 100"));

class SpreadQueries : public Queries {
 public:
  SpreadQueries()
      : Queries({"queries",
                 "spread",
                 "`spread_queries` of the prompt, evenly spaced; the last is the newest",
                 "kvsim",
                 {"spread_queries"},
                 "evenly spaced prompt queries"}) {}
  /// A segment sees those of them that stand in it.
  void observe(const Settings& settings, int64_t, const TraceInfo& info,
               Segment& segment) const override {
    const int64_t n = info.prompt_len;
    const int64_t count = std::min(settings.count(spread_queries), n);
    segment.candidates = segment.range;
    segment.positions.clear();
    segment.rows_before = segment.rows_after = 0;
    for (int64_t r = 1; r <= count; ++r) {
      const int64_t position = r * n / count - 1;
      if (segment.range.contains(position))
        segment.positions.push_back(position);
      else
        ++(position < segment.range.begin ? segment.rows_before : segment.rows_after);
    }
  }
};
const Register<Queries, SpreadQueries> spread;

}  // namespace
}  // namespace kvsim::stages::queries::spread
