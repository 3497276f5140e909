#include "analysis/measure.hpp"
#include "analysis/ranking.hpp"
#include "analysis/statistics.hpp"
#include "run/study/study.hpp"
#include "run/sweep/sweep.hpp"

namespace kvsim {
namespace {

/// Numbers of a record at one budget, from all results files of a sweep.
struct Cell {
  struct Shares {
    double held = 0, given = 0;  ///< `held_share` and `budget_share`, added up over seeds
  };
  std::vector<double> held;    ///< entries over what the budget gives, of every trace and seed
  std::vector<Shares> shares;  ///< [trace]
  /// [criterion][trace][step]: means over the seeds; of squares where the criterion is a root mean
  /// square. Empty where a trace lacks it.
  std::vector<SettingSeries> series;
};

bool squares(const Criterion& criterion) { return criterion.over == Fold::rms; }

/// Back from the squares that are averaged and set between budgets.
std::vector<double> unsquared(const Criterion& criterion, std::vector<double> steps) {
  if (squares(criterion))
    for (double& x : steps) x = std::sqrt(x);
  return steps;
}

/// All numbers of a sweep that settings are judged by.
class Series {
 public:
  explicit Series(const SweepPlan& plan)
      : options(plan.jobs().front().options),
        cells(std::ssize(options.budgets), std::ssize(options.records)) {
    for (const SweepJob& job : plan.jobs()) ++seeds_[job.reader->digest()];
    for (const SweepJob& job : plan.jobs())
      if (!contains(traces_, job.reader->digest())) traces_.push_back(job.reader->digest());
    table.traces = traces_.size();
    for (Cell& cell : cells.values()) {
      cell.shares.resize(traces_.size());
      cell.series.assign(criteria().size(), SettingSeries(traces_.size()));
    }
  }

  void add(const SweepJob& job, const Dataset& results) {
    std::erase_if(table.measured, [&](const std::string& name) { return !results.has(name); });
    if (table.stream_layers.empty()) table.stream_layers = stream_error_layers(results);
    from_.push_back(provenance(results));
    table.from = joined(from_, traces_.size());
    const auto& budgets = results.values<double>("budget");
    for (int64_t b = 0; b < cells.rows(); ++b) {
      const double ratio = options.budgets[b].ratio(job.reader->info().prompt_len);
      const int64_t column = std::ranges::find(budgets, ratio) - budgets.begin();
      if (ratio >= 1 || column == std::ssize(budgets)) continue;  // everything is kept, or nowhere
      for (int64_t r = 0; r < cells.columns(); ++r)
        add(results, job.reader->digest(), r, column, cells(b, r));
    }
  }

  /// [trace][step]; empty when a trace lacks it.
  SettingSeries of(size_t criterion, int64_t budget, int64_t record) const {
    SettingSeries series;
    for (const std::vector<double>& steps : cells(budget, record).series[criterion]) {
      if (steps.empty()) return {};
      series.push_back(unsquared(criteria()[criterion], steps));
    }
    return series;
  }
  /// A record where it holds what a budget gives, between its own budgets; empty: nowhere on some
  /// trace.
  SettingSeries at_equal_bytes(size_t criterion, int64_t budget, int64_t record) const {
    const Criterion& by = criteria()[criterion];
    if (cells(budget, record).held.empty()) return {};
    SettingSeries found;
    for (size_t trace = 0; trace < traces_.size(); ++trace) {
      const double given = cells(budget, record).shares[trace].given;
      std::vector<Point> points;
      for (int64_t b = 0; b < cells.rows(); ++b) {
        const Cell& cell = cells(b, record);
        if (!contains(cell.series[criterion], std::vector<double>()))
          points.push_back({cell.shares[trace].held / given, cell.series[criterion][trace]});
      }
      found.push_back(
          unsquared(by, at_share(points, 1, by.more_is_better ? Scale::plain : Scale::log)));
      if (found.back().empty()) return {};
    }
    return found;
  }

  const StudyOptions& options;
  Table<Cell> cells;                               ///< [budget][record]
  BestTable table{.measured = judged_measures()};  ///< without its rows

 private:
  /// `record` and `column` in the results: policy and budget.
  void add(const Dataset& results, const std::string& digest, int64_t record, int64_t column,
           Cell& cell) const {
    const size_t trace = std::ranges::find(traces_, digest) - traces_.begin();
    const auto share = [&](const char* name) {
      return results.has(name) ? results.row(name, {record, column})[0] : kUndefined;
    };
    cell.held.push_back(held_of_budget(results, record, column));
    cell.shares[trace].held += share("held_share");
    cell.shares[trace].given += share("budget_share");
    for (size_t c = 0; c < criteria().size(); ++c) {
      const Criterion& by = criteria()[c];
      if (!results.has(by.variable)) continue;
      const auto values = results.row(by.variable, {record, column});  // [layers][T]
      std::vector<double>& steps = cell.series[c][trace];
      steps.resize(results.size("step"));
      std::vector<double> layer(values.size() / steps.size());
      for (size_t t = 0; t < steps.size(); ++t) {
        for (size_t l = 0; l < layer.size(); ++l) layer[l] = values[l * steps.size() + t];
        const double x = by.fold(layer);
        steps[t] += (squares(by) ? x * x : x) / seeds_.at(digest);
      }
    }
  }

  std::vector<std::string> traces_;      ///< digests
  std::map<std::string, double> seeds_;  ///< results files of each trace
  std::vector<Provenance> from_;         ///< of each results file
};

/// Takes out the steps that no setting measured.
void drop_undefined(std::vector<SettingSeries>& settings) {
  for (size_t trace = 0; trace < settings.front().size(); ++trace)
    for (int64_t t = std::ssize(settings.front()[trace]); t-- > 0;) {
      const auto undefined = [&](const SettingSeries& one) { return std::isnan(one[trace][t]); };
      if (!std::ranges::all_of(settings, undefined)) continue;
      for (SettingSeries& one : settings) one[trace].erase(one[trace].begin() + t);
    }
}

/// Is there any difference that is more than rounding?
bool differ(const std::vector<SettingSeries>& settings) {
  constexpr double kRounding = 1e-6;
  for (const SettingSeries& one : settings)
    for (size_t trace = 0; trace < one.size(); ++trace)
      for (size_t t = 0; t < one[trace].size(); ++t)
        if (std::abs(one[trace][t] - settings.front()[trace][t]) > kRounding) return true;
  return false;
}

/// A row of the table that may come of it.
struct Comparison {
  std::string preset;
  std::vector<size_t> records;
  size_t criterion, budget;
};

/// Presets in typed order, by every measure, at every budget.
std::vector<Comparison> comparisons(const StudyOptions& options,
                                    const std::vector<std::string>& measures) {
  std::vector<std::pair<std::string, std::vector<size_t>>> presets;
  for (size_t r = 0; r < options.records.size(); ++r) {
    const std::string record = options.records[r].canonical();
    const std::string preset = record.substr(0, record.find(','));
    auto found = std::ranges::find(presets, preset, [](const auto& known) { return known.first; });
    if (found == presets.end()) found = presets.insert(found, {preset, {}});
    found->second.push_back(r);
  }
  std::vector<Comparison> all;
  for (const auto& [preset, records] : presets)
    for (size_t c = 0; c < criteria().size() && records.size() > 1; ++c)
      for (size_t b = 0; b < options.budgets.size(); ++b)
        if (contains(measures, criteria()[c].variable)) all.push_back({preset, records, c, b});
  return all;
}

/// Which settings may be the best: those that hold what the budget gives on every trace. Where none
/// does: those that hold as the first, if all do, so that only their own changes are compared.
std::vector<bool> ranked(const Series& series, const Comparison& of) {
  const auto holding = [&](const auto& given) {  // of every trace and seed
    std::vector<bool> found;
    for (const size_t r : of.records) {
      const auto& held = series.cells(of.budget, r).held;
      found.push_back(true);
      for (size_t k = 0; k < held.size(); ++k)
        if (!std::isnan(held[k]) && unranked_by(held[k] / given(k)) != Unranked::ranked)
          found.back() = false;
    }
    return found;
  };
  const std::vector<bool> found = holding([](size_t) { return 1.0; });
  const auto& first = series.cells(of.budget, of.records.front()).held;
  const std::vector<bool> alike = holding([&](size_t k) { return first[k]; });
  return contains(found, true) || contains(alike, false) ? found : alike;
}

/// Nothing where the settings cannot be compared: a trace lacks the measure, or none differs.
std::optional<BestRow> best_row(const Series& series, const Comparison& of) {
  const auto name = [&](size_t k) { return series.options.records[of.records[k]].canonical(); };
  std::vector<SettingSeries> settings;
  int usual = -1;
  for (size_t k = 0; k < of.records.size(); ++k) {
    settings.push_back(series.of(of.criterion, of.budget, of.records[k]));
    if (settings.back().empty()) return std::nullopt;
    if (name(k) == of.preset) usual = static_cast<int>(k);
  }
  drop_undefined(settings);
  if (!differ(settings)) return std::nullopt;
  const std::vector<bool> in = ranked(series, of);
  BestRow row{.preset = of.preset,
              .settings = of.records.size(),
              .criterion = criteria()[of.criterion],
              .budget = series.options.budgets[of.budget].label,
              .off_budget = static_cast<size_t>(std::ranges::count(in, false))};
  // The others where they hold what the budget gives, behind the best if there is one.
  std::vector<SettingSeries> others;
  std::vector<std::string> names;
  if (row.off_budget < in.size()) {
    row.found = best_setting(settings, usual, row.criterion, series.options.seed, in);
    row.record = name(row.found.best);
    row.held = mean(series.cells(of.budget, of.records[row.found.best]).held);
    others.push_back(settings[row.found.best]);
    names.push_back(row.record);
  }
  std::vector<bool> rivals(others.size(), false);
  const int best = others.empty() ? -1 : 0;
  for (size_t k = 0; k < in.size(); ++k) {
    if (in[k]) continue;
    SettingSeries own = series.at_equal_bytes(of.criterion, of.budget, of.records[k]);
    if (own.empty()) {
      ++row.nowhere;
      continue;
    }
    others.push_back(std::move(own));
    names.push_back(name(k));
    rivals.push_back(true);
  }
  if (!contains(rivals, true)) return row;
  drop_undefined(others);
  row.equal_bytes = best_setting(others, best, row.criterion, series.options.seed, rivals);
  row.equal_bytes_record = names[row.equal_bytes.best];
  return row;
}

}  // namespace

BestTable best_settings(const SweepPlan& plan, const std::vector<std::string>& measures) {
  Series series(plan);
  for (const SweepJob& job : plan.jobs()) series.add(job, read_known_results(job.path));
  const std::vector<Comparison> all = comparisons(series.options, measures);
  std::vector<std::optional<BestRow>> rows(all.size());
  parallel_for(std::ssize(all), [&](int64_t x) { rows[x] = best_row(series, all[x]); });
  for (std::optional<BestRow>& row : rows)
    if (row) series.table.rows.push_back(std::move(*row));
  return std::move(series.table);
}

}  // namespace kvsim
