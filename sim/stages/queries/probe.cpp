#include "sim/stages/queries/probe.hpp"

#include <algorithm>

#include "sim/stages/parameter.hpp"
#include "sim/stages/queries/queries.hpp"

namespace kvsim::stages::queries::probe {
namespace {

const Declare probe_key("probe", "text", "repeat", "name of the probe whose queries observe",
                        tested("repeat"));
const Declare probe_first("probe_first", "count >= 0 tokens", "0",
                          "only so many of its first tokens observe; 0: all", tested("2"));
const Declare probe_queries("probe_queries", "count >= 0 queries", "0",
                            "how many of its queries, evenly spaced; 0: all", tested("1 3"));

class ProbeQueries : public Queries {
 public:
  ProbeQueries()
      : Queries({"queries",
                 "probe",
                 "those of the probe `probe`, which stand behind the prompt, without its answer",
                 "kvsim",
                 {"probe", "probe_queries", "probe_first"},
                 "a probe of that name"}) {}
  bool goes_on() const override { return false; }
  bool nests(const Settings&) const override { return true; }
  bool of_probe() const override { return true; }
  void observe(const Settings& settings, int64_t, const TraceInfo& info,
               Segment& segment) const override {
    segment.candidates = segment.range;
    segment.positions.clear();
    observe_with_probe(settings, info, segment);
  }
};
const Register<Queries, ProbeQueries> probe;

}  // namespace
}  // namespace kvsim::stages::queries::probe

namespace kvsim {

using stages::queries::probe::probe_first;
using stages::queries::probe::probe_key;
using stages::queries::probe::probe_queries;

void observe_with_probe(const Settings& settings, const TraceInfo& info, Segment& segment) {
  segment.probe = info.find_probe(probe_name(settings));
  segment.probe_tokens.clear();
  if (segment.probe < 0) return;
  const int64_t all = info.probes[static_cast<size_t>(segment.probe)].observing();
  const int64_t first = settings.count(probe_first);
  const int64_t tokens = first == 0 ? all : std::min(first, all);
  const int64_t asked = settings.count(probe_queries);
  const int64_t count = asked == 0 ? tokens : std::min(asked, tokens);
  for (int64_t r = 1; r <= count; ++r) segment.probe_tokens.push_back(r * tokens / count - 1);
}

const std::string& probe_name(const Settings& settings) { return settings.text(probe_key); }

}  // namespace kvsim
