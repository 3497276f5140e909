#include "sim/stages/stages.hpp"

namespace kvsim::stages::queries::queries {

const Declare queries("queries", "kind", "window", "which queries observe");
const Declare window_key("window", "share >= 1 entries", "32",
                         "newest entries that observe and are protected",
                         tested("1 2 5 9 0.25 0.5"));
const Declare last_queries("last_queries", "count >= 1 queries", "400",
                           "how many of the last queries observe", tested("1 3 11 100"));

std::vector<int64_t> positions_of(Range range) { return ascending(range.size(), range.begin); }

/// J of the whole prompt, of which a segment sees its own part only.
void observe_part(Range all, Segment& segment) {
  const Range own{std::clamp(segment.range.begin, all.begin, all.end),
                  std::clamp(segment.range.end, all.begin, all.end)};
  segment.candidates = segment.range;
  segment.positions = positions_of(own);
  segment.rows_before = own.begin - all.begin;
  segment.rows_after = all.end - own.end;
}

struct NoQueries : Queries {
  NoQueries() : Queries({"none", "no query observes", "", "", "", "", "indicator=position"}) {}
  bool at_each_step() const override { return true; }
  void observe(const Settings&, int64_t, const TraceInfo&, Segment& segment) const override {
    segment.candidates = segment.range;
  }
};

struct WindowQueries : Queries {
  WindowQueries()
      : Queries({"window", "the newest m, whose own entries are protected", "SnapKV; DefensiveKV 2",
                 "window", "queries n-m..n-1"}) {}
  bool has_window() const override { return true; }
  bool nests(const Settings& settings) const override { return !settings.is_fraction(window_key); }
  int64_t window(const Settings& settings, int64_t budget, int64_t entries) const override {
    return std::min(std::max<int64_t>(1, settings.share(window_key, budget)), entries);
  }
  void observe(const Settings&, int64_t window, const TraceInfo&, Segment& segment) const override {
    const int64_t m = std::min(window, segment.range.size());
    segment.window = m;
    segment.candidates = {segment.range.begin, segment.range.end - m};
    segment.positions = positions_of({segment.range.end - m, segment.range.end});
  }
};

struct LastQueries : Queries {
  LastQueries()
      : Queries({"last", "the newest `last_queries`", "Scissorhands", "last_queries",
                 "the last `last_queries` prompt queries"}) {}
  bool observes_newest(const Settings& settings) const override {
    return settings.count(last_queries) == 1;
  }
  void observe(const Settings& settings, int64_t, const TraceInfo& info,
               Segment& segment) const override {
    const int64_t n = info.prompt_len;
    observe_part({n - std::min(settings.count(last_queries), n), n}, segment);
  }
};

struct AllQueries : Queries {
  AllQueries() : Queries({"all", "every prompt query", "H2O", "", "queries 0..n-1"}) {}
  bool observes_all() const override { return true; }
  void observe(const Settings&, int64_t, const TraceInfo& info, Segment& segment) const override {
    observe_part({0, info.prompt_len}, segment);
  }
};

struct FutureQueries : Queries {
  FutureQueries()
      : Queries({"future", "the later steps themselves (oracles only)", "kvsim", "",
                 "queries at positions >= n"}) {}
  bool looks_ahead() const override { return true; }
  bool at_each_step() const override { return true; }
  void observe(const Settings&, int64_t, const TraceInfo& info, Segment& segment) const override {
    segment.candidates = segment.range;
    segment.positions.assign(info.query_position.begin() + info.first_step(),
                             info.query_position.end());
  }
};

const Declare probe_key("probe", "text", "repeat", "name of the probe whose queries observe",
                        tested("repeat"));
const Declare probe_first("probe_first", "count >= 0 tokens", "0",
                          "only so many of its first tokens observe; 0: all", tested("2"));
const Declare probe_queries("probe_queries", "count >= 0 queries", "0",
                            "how many of its queries, evenly spaced; 0: all", tested("1 3"));

struct ProbeQueries : Queries {
  ProbeQueries()
      : Queries({"probe",
                 "those of the probe `probe`, which stand behind the prompt, without its answer",
                 "kvsim", "probe probe_queries probe_first", "a probe of that name"}) {}
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

const Declare spread_queries("spread_queries", "count >= 1 queries", "256",
                             "how many queries observe, evenly over the prompt", tested("1 7 100"));

struct SpreadQueries : Queries {
  SpreadQueries()
      : Queries({"spread", "`spread_queries` of the prompt, evenly spaced; the last is the newest",
                 "kvsim", "spread_queries", "evenly spaced prompt queries"}) {}
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
const Register<Queries, NoQueries, WindowQueries, LastQueries, AllQueries, FutureQueries,
               ProbeQueries, SpreadQueries>
    registered;

}  // namespace kvsim::stages::queries::queries

namespace kvsim {

void observe_with_probe(const Settings& settings, const TraceInfo& info, Segment& segment) {
  using namespace stages::queries::queries;
  segment.probe = info.find_probe(probe_name(settings));
  segment.probe_tokens.clear();
  if (segment.probe < 0) return;
  const int64_t all = info.probes[segment.probe].observing();
  const int64_t first = settings.count(probe_first);
  const int64_t tokens = first == 0 ? all : std::min(first, all);
  const int64_t asked = settings.count(probe_queries);
  const int64_t count = asked == 0 ? tokens : std::min(asked, tokens);
  for (int64_t r = 1; r <= count; ++r) segment.probe_tokens.push_back(r * tokens / count - 1);
}

const std::string& probe_name(const Settings& settings) {
  return settings.text(stages::queries::queries::probe_key);
}

}  // namespace kvsim
