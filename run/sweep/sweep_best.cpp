#include "analysis/measure.hpp"
#include "analysis/ranking.hpp"
#include "run/sweep/sweep.hpp"

namespace kvsim {
namespace {

/// Numbers of a record at one budget on one trace: sums or means over its seeds.
struct Numbers {
  double held = 0, given = 0;  ///< `held_share` and `budget_share`, added up
  /// [criterion][step]: means, of squares where the criterion is a root mean square; empty where
  /// the trace lacks it.
  std::vector<std::vector<double>> series = std::vector<std::vector<double>>(criteria().size());
};

/// All numbers of a sweep that settings are judged by.
class Series {
 public:
  explicit Series(const SweepPlan& plan)
      : options(plan.jobs().front().options),
        held(std::ssize(options.budgets), std::ssize(options.records)),
        numbers_(held.rows(), held.columns()) {
    for (const Record& record : options.records) names.push_back(record.canonical());
    std::map<std::string, double> seeds;  // results files of each trace, by its digest
    for (const SweepJob& job : plan.jobs()) ++seeds[job.reader->digest()];
    table.traces = seeds.size();
    std::vector<std::string> traces;
    std::vector<Provenance> from;
    for (const SweepJob& job : plan.jobs()) {
      const std::string digest = job.reader->digest();
      const size_t trace = std::ranges::find(traces, digest) - traces.begin();
      if (trace == traces.size()) traces.push_back(digest);
      const Dataset results = read_known_results(job.path);
      std::erase_if(table.measured, [&](const std::string& name) { return !results.has(name); });
      if (table.stream_layers.empty()) table.stream_layers = stream_error_layers(results);
      from.push_back(provenance(results));
      const auto& budgets = results.values<double>("budget");
      for (int64_t b = 0; b < held.rows(); ++b) {
        const double ratio = options.budgets[b].ratio(job.reader->info().prompt_len);
        const int64_t column = std::ranges::find(budgets, ratio) - budgets.begin();
        if (ratio >= 1 || column == std::ssize(budgets)) continue;  // all is kept, or nowhere
        for (int64_t r = 0; r < held.columns(); ++r) {
          held(b, r).push_back(held_of_budget(results, r, column));
          numbers_(b, r).resize(table.traces);
          add(results, r, column, seeds[digest], numbers_(b, r)[trace]);
        }
      }
    }
    table.from = joined(from, table.traces);
  }

  /// [trace][step] of a record; `equal`: where it holds what the budget gives, between its own
  /// budgets. Empty where a trace lacks it.
  SettingSeries of(size_t criterion, size_t budget, size_t record, bool equal) const {
    const Criterion& by = criteria()[criterion];
    SettingSeries found;
    for (size_t trace = 0; trace < numbers_(budget, record).size(); ++trace) {
      const Numbers& own = numbers_(budget, record)[trace];
      std::vector<double> steps = own.series[criterion];
      std::vector<Point> points;
      for (int64_t b = 0; equal && b < held.rows(); ++b)
        if (const auto& at = numbers_(b, record); trace < at.size())
          points.push_back({at[trace].held / own.given, at[trace].series[criterion]});
      if (equal) steps = at_share(points, 1, by.more_is_better ? Scale::plain : Scale::log);
      if (steps.empty()) return {};
      if (by.over == Fold::rms)
        for (double& x : steps) x = std::sqrt(x);
      found.push_back(std::move(steps));
    }
    return found;
  }

  const StudyOptions& options;
  std::vector<std::string> names;  ///< of the records
  /// [budget][record]: entries over what the budget gives, of every trace and seed.
  Table<std::vector<double>> held;
  BestTable table{.measured = judged_measures()};  ///< without its rows

 private:
  /// `record` and `column` in the results: policy and budget.
  static void add(const Dataset& results, int64_t record, int64_t column, double seeds,
                  Numbers& to) {
    const auto share = [&](const char* name) {
      return results.has(name) ? results.row(name, {record, column})[0] : kUndefined;
    };
    to.held += share("held_share");
    to.given += share("budget_share");
    for (size_t c = 0; c < criteria().size(); ++c) {
      const Criterion& by = criteria()[c];
      if (!results.has(by.variable)) continue;
      const auto values = results.row(by.variable, {record, column});  // [layers][T]
      std::vector<double>& steps = to.series[c];
      steps.resize(results.size("step"));
      std::vector<double> layer(values.size() / steps.size());
      for (size_t t = 0; t < steps.size(); ++t) {
        for (size_t l = 0; l < layer.size(); ++l) layer[l] = values[l * steps.size() + t];
        const double x = by.fold(layer);
        steps[t] += (by.over == Fold::rms ? x * x : x) / seeds;
      }
    }
  }

  Table<std::vector<Numbers>> numbers_;  ///< [budget][record][trace]
};

/// Is there any difference that is more than rounding?
bool differ(const std::vector<SettingSeries>& settings) {
  constexpr double kRounding = 1e-6;
  for (const SettingSeries& one : settings)
    for (size_t trace = 0; trace < one.size(); ++trace)
      for (size_t t = 0; t < one[trace].size(); ++t)
        if (std::abs(one[trace][t] - settings.front()[trace][t]) > kRounding) return true;
  return false;
}

/// Which of these records may be the best: those that hold what the budget gives on every trace.
/// Where none does: those that hold as the first, if all do, so that only their own changes are
/// compared.
std::vector<bool> ranked(const Series& series, const std::vector<size_t>& records, size_t budget) {
  const auto holding = [&](const auto& given) {  // of every trace and seed
    std::vector<bool> found(records.size(), true);
    for (size_t r = 0; r < records.size(); ++r)
      for (size_t k = 0; const double held : series.held(budget, records[r]))
        if (const double share = held / given(k++); !std::isnan(share))
          found[r] = found[r] && unranked_by(share) == Unranked::ranked;
    return found;
  };
  const std::vector<bool> found = holding([](size_t) { return 1.0; });
  const auto& first = series.held(budget, records.front());
  const std::vector<bool> alike = holding([&](size_t k) { return first[k]; });
  return contains(found, true) || contains(alike, false) ? found : alike;
}

std::string preset_of(const std::string& name) { return name.substr(0, name.find(',')); }

/// Nothing where a preset's settings cannot be compared: there is one, a trace lacks the measure,
/// or none differs.
std::optional<BestRow> best_row(const Series& series, const std::string& preset, size_t criterion,
                                size_t budget) {
  std::vector<size_t> records;
  std::vector<SettingSeries> settings;
  int usual = -1;
  for (size_t r = 0; r < series.names.size(); ++r) {
    if (preset_of(series.names[r]) != preset) continue;
    if (series.names[r] == preset) usual = static_cast<int>(records.size());
    records.push_back(r);
    settings.push_back(series.of(criterion, budget, r, false));
    if (settings.back().empty()) return std::nullopt;
  }
  if (!differ(settings)) return std::nullopt;
  const auto name = [&](size_t k) { return series.names[records[k]]; };
  const std::vector<bool> in = ranked(series, records, budget);
  BestRow row{.preset = preset,
              .settings = records.size(),
              .criterion = criteria()[criterion],
              .budget = series.options.budgets[budget].label,
              .off_budget = static_cast<size_t>(std::ranges::count(in, false))};
  if (contains(in, true)) {
    row.found = best_setting(settings, usual, row.criterion, series.options.seed, in);
    row.record = name(row.found.best);
    row.held = mean(series.held(budget, records[row.found.best]));
  }
  // The others where they hold what the budget gives, behind the best if there is one.
  std::vector<bool> others(in.size());
  for (size_t k = 0; k < in.size(); ++k) {
    if (in[k]) continue;
    SettingSeries own = series.of(criterion, budget, records[k], true);
    others[k] = !own.empty();
    row.nowhere += own.empty() ? 1 : 0;
    if (others[k]) settings[k] = std::move(own);
  }
  if (!contains(others, true)) return row;
  const int best = row.record.empty() ? -1 : static_cast<int>(row.found.best);
  row.equal_bytes = best_setting(settings, best, row.criterion, series.options.seed, others);
  row.equal_bytes_record = name(row.equal_bytes.best);
  return row;
}

}  // namespace

BestTable best_settings(const SweepPlan& plan, const std::vector<std::string>& measures) {
  Series series(plan);
  std::vector<std::string> presets;  // in typed order
  for (const std::string& name : series.names)
    if (!contains(presets, preset_of(name))) presets.push_back(preset_of(name));
  const size_t budgets = series.options.budgets.size(), each = criteria().size() * budgets;
  std::vector<std::optional<BestRow>> rows(presets.size() * each);
  parallel_for(std::ssize(rows), [&](int64_t x) {
    const size_t criterion = x % each / budgets;
    if (contains(measures, criteria()[criterion].variable))
      rows[x] = best_row(series, presets[x / each], criterion, x % budgets);
  });
  for (std::optional<BestRow>& row : rows)
    if (row) series.table.rows.push_back(std::move(*row));
  return std::move(series.table);
}

}  // namespace kvsim
