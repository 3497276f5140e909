// Kept entries by number, name and span, and whether what is held lets a policy be ranked
// (metrics.md 4 and 6).
#include "analysis/formulas.hpp"
#include "analysis/measure.hpp"
#include "analysis/ranking.hpp"
#include "analysis/statistics.hpp"
#include "sim/policy/prepared_record.hpp"

namespace kvsim {

int64_t SpanTokens::tokens() const {
  int64_t sum = 0;
  for (const Range& range : ranges) sum += range.size();
  return sum;
}

std::vector<SpanTokens> span_tokens(const TraceInfo& info,
                                    const std::vector<std::string>& complements) {
  std::vector<SpanTokens> all;
  std::vector<std::string> names;
  for (const Span& span : info.spans) {
    all.push_back({span.name, {{span.begin, span.end}}, true});
    names.push_back(span.name);
  }
  for (const std::string& name : complements) {
    const auto found = std::find(names.begin(), names.end(), name);
    if (found == names.end())
      bad_data({.what = "no span '" + name + "'",
                .where = info.path,
                .hint = did_you_mean(name, names)});
    const Span& span = info.spans[found - names.begin()];
    SpanTokens outside{"!" + name, {}, false};
    for (const Range range : {Range{0, span.begin}, Range{span.end, info.prompt_len}})
      if (range.size() > 0) outside.ranges.push_back(range);
    all.push_back(std::move(outside));
  }
  return all;
}

double keep_rate_of_head(const KeptEntries& kept, const SpanTokens& span) {
  const int64_t tokens = span.tokens();
  if (tokens == 0) return kUndefined;
  int64_t count = 0;
  for (const Range& range : span.ranges) {
    const auto begin = std::lower_bound(kept.begin(), kept.end(), range.begin);
    count += std::lower_bound(begin, kept.end(), range.end) - begin;
  }
  return static_cast<double>(count) / static_cast<double>(tokens);
}

double keep_rate(const std::vector<KeptEntries>& heads, const SpanTokens& span) {
  double sum = 0;
  for (const KeptEntries& kept : heads) sum += keep_rate_of_head(kept, span);
  return sum / static_cast<double>(heads.size());
}

double unbiased_rate(const std::vector<KeptEntries>& heads, int64_t prompt_len) {
  size_t kept = 0;
  for (const KeptEntries& head : heads) kept += head.size();
  return static_cast<double>(kept) / static_cast<double>(heads.size()) /
         static_cast<double>(prompt_len);
}

double bias_spread(std::span<const double> rates, const std::vector<SpanTokens>& spans) {
  std::vector<double> labelled;
  for (size_t s = 0; s < spans.size(); ++s)
    if (spans[s].labelled) labelled.push_back(rates[s]);
  return maximum(labelled) - minimum(labelled);
}

}  // namespace kvsim

namespace kvsim::measures::kept {
namespace {

struct Kept : Measure {
  using Measure::Measure;

  void finish(const MeasuredLayer& layer, MeasureResults& results) override {
    layer.for_each_cell([&](ReplayCell cell, size_t o) {
      const ReplayOutcome& outcome = layer.replay.outcome(o);
      const KeptSets& sets = *outcome.kept;
      const auto place = static_cast<size_t>(std::ranges::find(outcome.cells, cell) -
                                             outcome.cells.begin());
      const std::vector<int64_t>& tied = place < outcome.tied.size() ? outcome.tied[place]
                                                                     : sets.tied;
      const bool query = sets.per_query_head;
      for (size_t owner = 0; owner < sets.owners.size(); ++owner) {
        const std::initializer_list<int64_t> at = {cell.record, cell.budget, layer.index,
                                                   static_cast<int64_t>(owner)};
        results.set(query ? "kept_query" : "kept", at,
                    static_cast<double>(sets.owners[owner].size()));
        results.set(query ? "tied_at_threshold_query" : "tied_at_threshold", at,
                    tied.empty() ? 0.0 : static_cast<double>(tied[owner]));
        const char* const mask = query ? "kept_mask_query" : "kept_mask";
        if (results.has(mask)) fill_mask(sets, owner, results.row<uint8_t>(mask, at));
      }
    });
  }

 private:
  static void fill_mask(const KeptSets& sets, size_t owner, std::span<uint8_t> mask) {
    std::ranges::fill(mask, uint8_t{0});
    for (const uint32_t entry : sets.owners[owner]) mask[entry] = 1;
    if (sets.merged.empty()) return;
    for (const uint32_t entry : sets.merged[owner]) mask[entry] = 2;
  }
};
const RegisterMeasure<Kept> register_kept(
    {.name = "kept", .place = 300, .when = &kAlways},
    {{"kept", "policy budget layer kv_head", "count", "kept prompt entries of a KV head",
      "prompt entries that are their own slot; NaN for policies with granularity=query"},
     {"kept_query", "policy budget layer head", "count", "kept prompt entries of a query head",
      "the same for policies with granularity=query", Needs{&kQueryHeads}},
     {"tied_at_threshold", "policy budget layer kv_head", "count",
      "candidates tied with the last one kept",
      "candidates whose score equals that of the last one kept by score, itself included; 0 if "
      "none was kept by score"},
     {"tied_at_threshold_query", "policy budget layer head", "count",
      "candidates tied with the last one kept", "the same for policies with granularity=query",
      Needs{&kQueryHeads}},
     {"kept_mask", "policy budget layer kv_head position", "1", "what became of each prompt entry",
      "255 for policies with granularity=query", VariableType::uint8, Needs{&kSaveKeep},
      Flags{{0, "dropped"}, {1, "kept"}, {2, "merged"}}},
     {"kept_mask_query", "policy budget layer head position", "1",
      "what became of each prompt entry", "the same for policies with granularity=query",
      VariableType::uint8, Needs{&kSaveKeep, &kQueryHeads},
      Flags{{0, "dropped"}, {1, "kept"}, {2, "merged"}}}});

struct KeepRate : Measure {
  using Measure::Measure;

  void finish(const MeasuredLayer& layer, MeasureResults& results) override {
    layer.for_each_cell([&](ReplayCell cell, size_t o) {
      const auto [p, b] = cell;
      const KeptSets& sets = *layer.replay.outcome(o).kept;
      const double line = unbiased_rate(sets.owners, run().info.prompt_len);
      std::vector<double> rates;
      for (const SpanTokens& span : run().spans) {
        const auto s = std::ssize(rates);
        rates.push_back(kvsim::keep_rate(sets.owners, span));
        results.set("keep_rate", {p, b, layer.index, s}, rates.back());
        results.set("bias_index", {p, b, layer.index, s}, rates.back() - line);
        for (size_t h = 0; !sets.per_query_head && h < sets.owners.size(); ++h)
          results.set("keep_rate_head", {p, b, layer.index, static_cast<int64_t>(h), s},
                      keep_rate_of_head(sets.owners[h], span));
      }
      results.set("bias_spread", {p, b, layer.index}, kvsim::bias_spread(rates, run().spans));
    });
  }
};
const RegisterMeasure<KeepRate> register_keep_rate(
    {.name = "keep_rate", .place = 310, .when = &kAlways},
    {{"keep_rate", "policy budget layer span", "1", "kept share of a span",
      "mean over the span's tokens and the heads of [kept]", Needs{&kSpans}},
     {"bias_index", "policy budget layer span", "1", "keep rate above the unbiased line",
      "keep_rate minus the share of all entries that the layer keeps; 0 is unbiased",
      Needs{&kSpans}},
     {"bias_spread", "policy budget layer", "1", "spread of keep rates",
      "largest minus smallest keep_rate over the spans of the trace", Needs{&kSpans}},
     {"keep_rate_head", "policy budget layer kv_head span", "1",
      "kept share of a span in one KV head", "NaN for policies with granularity=query",
      Needs{&kSpans, &kPerHead}}});

struct SpanImportance : Measure {
  using Measure::Measure;

  MeasureNeeds needs() const override { return {.span_parts = true}; }
  void start(const MeasuredLayer& layer) override {
    spans_.assign(layer.replay.count(), series(std::ssize(run().spans)));
  }
  void see(const StepBlock& block, const OutcomeBlock& view) override {
    if (view.sums == nullptr || view.sums->part_kept.empty()) return;
    for (int64_t p = 0; p < std::ssize(run().spans); ++p) {
      const auto shares = spans_[view.outcome].row(p).subspan(block.first_step, block.steps);
      for (int64_t s = 0; s < block.steps; ++s)
        shares[s] = retained_share(view.sums->part_kept(p, s), view.sums->part_total(p, s));
    }
  }
  void finish(const MeasuredLayer& layer, MeasureResults& results) override {
    layer.for_each_cell([&](ReplayCell cell, size_t o) {
      for (int64_t p = 0; p < std::ssize(run().spans); ++p) {
        const std::initializer_list<int64_t> at = {cell.record, cell.budget, layer.index, p};
        results.set("span_retained_importance", at, mean(spans_[o].row(p)));
        results.copy("span_retained_importance_step", at, spans_[o].row(p));
      }
    });
  }
  /// Nothing is generated, and without compression all scores are 1, so that the largest budget
  /// below n stands for the order to be kept.
  void finish_run(MeasureResults& results) override {
    const auto policies = std::ssize(run().options.records);
    const auto budgets = std::ssize(run().options.budgets);
    const int64_t reference = largest_budget();
    const auto undefined = [](double score) { return std::isnan(score); };
    for (int64_t p = 0; p < policies && reference >= 0; ++p) {
      const std::vector<double> wanted = scores(p, reference, results);
      for (int64_t b = 0; b < budgets; ++b) {
        const std::vector<double> own = scores(p, b, results);
        if (std::ranges::any_of(own, undefined) || std::ranges::any_of(wanted, undefined)) continue;
        results.set("span_spearman", {p, b}, spearman(own, wanted));
      }
    }
  }

 private:
  /// Below n; -1: none.
  int64_t largest_budget() const {
    int64_t largest = -1, most = -1;
    for (int64_t b = 0; b < std::ssize(run().options.budgets); ++b) {
      const int64_t entries = run().options.budgets[b].entries(run().info.prompt_len);
      if (entries >= run().info.prompt_len || entries <= most) continue;
      largest = b;
      most = entries;
    }
    return largest;
  }
  /// Of the labelled spans, mean over layers.
  std::vector<double> scores(int64_t policy, int64_t budget, MeasureResults& results) const {
    std::vector<double> classes;
    for (int64_t s = 0; s < std::ssize(run().spans); ++s) {
      std::vector<double> layers;
      for (int64_t layer = 0; layer < results.size("layer"); ++layer)
        layers.push_back(results.row("span_retained_importance", {policy, budget, layer, s})[0]);
      if (run().spans[s].labelled) classes.push_back(mean(layers));
    }
    return classes;
  }

  std::vector<Table<double>> spans_;  ///< [outcome] each [spans][T]
};
const RegisterMeasure<SpanImportance> register_span_importance(
    {.name = "span_importance", .place = 320},
    {{"span_retained_importance", "policy budget layer span", "1",
      "class score: retained importance of a span",
      "share of the importance of the span's own entries that falls on kept ones, pooled over "
      "query heads, mean over steps; a proxy of how well the instruction survives",
      Needs{&kSpans}, When{&kAlways}},
     {"span_spearman", "policy budget", "1", "order of the spans under compression",
      "Spearman over the trace's spans of their class scores (mean over layers) with those at the "
      "largest budget below n; NaN for fewer than 2 spans or equal scores",
      Needs{&kSpans}, When{&kAlways}},
     {"span_retained_importance_step", "policy budget layer span step", "1",
      "retained importance of a span", "the same at each step", Needs{&kSpans}}});

constexpr const char* kCell = "policy budget";
constexpr double kNothing = 1e-12;  // of a stream error
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
// Behind every measure that it reads.
const RegisterMeasure<Ranked> register_ranked(
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

}  // namespace
}  // namespace kvsim::measures::kept
