// Entries that a policy really held at each budget, and whether that lets it be ranked (metrics.md
// 6).

#include "analysis/measure.hpp"
#include "analysis/ranking.hpp"
#include "sim/policy/prepared_record.hpp"

namespace kvsim::measures::ranked {
namespace {

constexpr const char* kCell = "policy budget";
constexpr double kNothing = 1e-12;  // of a stream error
// Behind every measure that it reads.
const DeclareMeasure measure(
    {.name = "ranked", .place = 890, .when = &kAlways},
    {{"held_share", kCell, "1", "share of the full cache's bytes that is held",
      "1 / compression; of policies that evict later tokens bytes_peak over that of the full "
      "cache; with --equal-bytes that of its form of a cache"},
     {"budget_share", kCell, "1", "share of the full cache's bytes that the budget gives",
      "budget_entries / n, of policies that evict later tokens with all of these; with "
      "--equal-bytes the budget as typed"},
     {"held_of_budget", kCell, "1", "what is held over what the budget gives",
      "entries (realised_ratio n / budget_entries) or bytes (held_share / budget_share), whichever "
      "is further from 1; with --equal-bytes the bytes"},
     {"unranked", kCell, "1", "why a policy is not ranked with the others",
      "0 ranked; 1 sees later queries; 2 no stream error at any budget; 3 all scores of all heads "
      "equal; held_of_budget 4 above 1.05, 5 below 0.95",
      VariableType::uint8,
      Flags{{0, "ranked"},
            {1, "hindsight"},
            {2, "nothing_lost"},
            {3, "scores_all_equal"},
            {4, "holds_more"},
            {5, "holds_less"}}}});

struct Ranked : Measure {
  using Measure::Measure;

  void finish_run(MeasureResults& results) override {
    for (int64_t p = 0; p < results.size("policy"); ++p) {
      const Unranked apart = stands_apart(results, p);
      for (int64_t b = 0; b < results.size("budget"); ++b) {
        const double held = add_held(results, p, b);
        results.row<uint8_t>("unranked", {p, b})[0] = static_cast<uint8_t>(
            apart != Unranked::ranked ? apart : unranked_by(held));
      }
    }
  }

 private:
  static double value(MeasureResults& results, const char* name, int64_t p, int64_t b) {
    return results.has(name) ? results.row(name, {p, b})[0] : kUndefined;
  }
  double n() const { return static_cast<double>(run().info.prompt_len); }
  const Settings& settings(int64_t p) const { return run().options.records[p].settings; }

  /// Writes what is held, and returns it over what the budget gives.
  double add_held(MeasureResults& results, int64_t p, int64_t b) const {
    const auto of = [&](const char* name) { return value(results, name, p, b); };
    const double slots = std::isnan(of("bytes_quantized")) ? of("bytes_ragged")
                                                           : of("bytes_quantized");
    const double full = of("compression") * (slots + of("bytes_side"));
    double held = 1 / of("compression");
    double given = of("budget_entries") / n();
    double factor = kUndefined;
    if (const std::string& form = run().options.equal_bytes; !form.empty()) {
      std::string name = "bytes_" + form;
      std::ranges::replace(name, '-', '_');
      held = of(name.c_str()) / full;
      given = std::min(1.0, run().options.budgets[b].ratio(run().info.prompt_len));
    } else {
      factor = of("realised_ratio") / given;
      const auto later = static_cast<double>(run().info.total_len - run().info.prompt_len);
      const double whole = full / n() * later;
      if (of("bytes_peak") < (1 - kHeldAlike) * (of("bytes_flattened") + whole)) {
        held = of("bytes_peak") / (full + whole);
        given = (of("budget_entries") + later) / (n() + later);
      }
    }
    results.set("held_share", {p, b}, held);
    results.set("budget_share", {p, b}, given);
    const double bytes = held / given;
    const auto distance = [](double x) { return std::abs(std::log(x)); };
    if (std::isnan(factor) || distance(bytes) > distance(factor)) factor = bytes;
    results.set("held_of_budget", {p, b}, factor);
    return factor;
  }

  Unranked stands_apart(MeasureResults& results, int64_t p) const {
    if (chosen<Queries>(settings(p)).looks_ahead()) return Unranked::hindsight;
    bool nothing = results.size("budget") > 0;
    bool equal = nothing && !chosen<Schedule>(settings(p)).at_each_step();  // where steps score
    for (int64_t b = 0; b < results.size("budget"); ++b) {
      nothing = nothing && value(results, "stream_error_rms", p, b) <= kNothing;
      equal = equal && scores_equal(results, p, b);
    }
    if (nothing) return Unranked::nothing_lost;
    return equal ? Unranked::scores_all_equal : Unranked::ranked;
  }

  /// Entries that are kept whatever they score.
  int64_t guarded(MeasureResults& results, int64_t p, int64_t b) const {
    const auto& queries = chosen<Queries>(settings(p));
    const auto entries = static_cast<int64_t>(value(results, "budget_entries", p, b));
    const int64_t window = queries.has_window()
                               ? queries.window(settings(p), entries, run().info.prompt_len)
                               : 0;
    return window + settings(p).count(keys::sinks) + settings(p).count(keys::recent);
  }

  /// All candidates of every head tie with the last one that is kept.
  bool scores_equal(MeasureResults& results, int64_t p, int64_t b) const {
    const bool heads = per_query_head(settings(p));
    const char* const ties = heads ? "tied_at_threshold_query" : "tied_at_threshold";
    if (!results.has(ties)) return false;
    const auto tied = results.row(ties, {p, b});
    const auto candidates = n() - static_cast<double>(guarded(results, p, b));
    return !tied.empty() && candidates > 1 &&
           std::ranges::all_of(tied, [&](double count) { return count >= candidates; });
  }
};
const RegisterMeasure<Ranked> registered(measure);

}  // namespace
}  // namespace kvsim::measures::ranked
