#include "analysis/output_norms.hpp"
#include "analysis/ranking.hpp"
#include "analysis/statistics.hpp"
#include "run/study/known_results.hpp"
#include "run/sweep/sweep.hpp"

namespace kvsim {
namespace {

/// Numbers of a record at one budget, from all results files of a sweep.
struct Measured {
  struct Shares {
    double held = 0, given = 0;  ///< `held_share` and `budget_share`, added up over seeds
  };
  std::vector<double> held;    ///< entries over what the budget gives, of every trace and seed
  std::vector<Shares> shares;  ///< [trace]
  std::vector<std::vector<SettingSeries>> series;  ///< [criterion][trace][seed][step]
};

/// Mean over the seeds of a trace, root mean square where the criterion is one.
std::vector<double> over_seeds(const Criterion& criterion, const SettingSeries& seeds) {
  const bool squares = criterion.over == Fold::rms;
  std::vector<double> steps(seeds.front().size(), 0.0);
  for (size_t t = 0; t < steps.size(); ++t) {
    for (const std::vector<double>& one : seeds)
      steps[t] += (squares ? one[t] * one[t] : one[t]) / static_cast<double>(seeds.size());
    if (squares) steps[t] = std::sqrt(steps[t]);
  }
  return steps;
}

/// A criterion at each step, folded over the layers.
std::vector<double> over_layers(const Dataset& results, const Criterion& criterion, int64_t record,
                                int64_t budget) {
  const auto values = results.row(criterion.variable, {record, budget});  // [layers][T]
  std::vector<double> steps(results.size("step")), layer(values.size() / steps.size());
  for (size_t t = 0; t < steps.size(); ++t) {
    for (size_t l = 0; l < layer.size(); ++l) layer[l] = values[l * steps.size() + t];
    steps[t] = criterion.fold(layer);
  }
  return steps;
}

/// All numbers of a sweep that settings are judged by.
class Series {
 public:
  explicit Series(const SweepPlan& plan)
      : options_(plan.jobs().front().options), measured_(judged_measures()),
        cells_(std::ssize(options_.budgets), std::ssize(options_.records)) {
    for (const SweepJob& job : plan.jobs()) {
      const std::string& trace = job.reader->digest();
      if (!contains(traces_, trace)) traces_.push_back(trace);
    }
    for (Measured& cell : cells_.values()) {
      cell.shares.resize(traces_.size());
      cell.series.assign(criteria().size(), std::vector<SettingSeries>(traces_.size()));
    }
  }

  void add(const SweepJob& job, const Dataset& results) {
    const size_t trace = std::ranges::find(traces_, job.reader->digest()) - traces_.begin();
    std::erase_if(measured_, [&](const std::string& name) { return !results.has(name); });
    if (layers_.empty()) layers_ = stream_error_layers(results);
    from_.push_back(provenance(results));
    const auto& budgets = results.values<double>("budget");
    for (int64_t b = 0; b < cells_.rows(); ++b) {
      const double ratio = options_.budgets[b].ratio(job.reader->info().prompt_len);
      const int64_t column = std::ranges::find(budgets, ratio) - budgets.begin();
      if (ratio >= 1 || column == std::ssize(budgets)) continue;  // everything is kept, or nowhere
      for (int64_t r = 0; r < cells_.columns(); ++r) add(results, trace, r, column, cells_(b, r));
    }
  }

  /// Empty when a trace lacks it.
  SettingSeries of(size_t criterion, size_t budget, size_t record) const {
    SettingSeries series;
    for (const SettingSeries& seeds : cell(budget, record).series[criterion]) {
      if (seeds.empty()) return {};
      series.push_back(over_seeds(criteria()[criterion], seeds));
    }
    return series;
  }
  std::span<const double> held(size_t budget, size_t record) const {
    return cell(budget, record).held;
  }
  /// A record where it holds what a budget gives, between its own budgets; empty: nowhere on some
  /// trace.
  SettingSeries at_equal_bytes(size_t criterion, size_t budget, size_t record) const {
    const Criterion& by = criteria()[criterion];
    const bool squares = by.over == Fold::rms;
    if (cell(budget, record).held.empty()) return {};
    SettingSeries found;
    for (size_t trace = 0; trace < traces_.size(); ++trace) {
      const double given = cell(budget, record).shares[trace].given;
      std::vector<Point> points;
      for (size_t b = 0; b < options_.budgets.size(); ++b) {
        const SettingSeries own = of(criterion, b, record);
        if (own.empty()) continue;
        points.push_back({cell(b, record).shares[trace].held / given, own[trace]});
        if (squares)
          for (double& x : points.back().series) x *= x;
      }
      found.push_back(at_share(points, 1, by.more_is_better ? Scale::plain : Scale::log));
      if (found.back().empty()) return {};
      if (squares)
        for (double& x : found.back()) x = std::sqrt(x);
    }
    return found;
  }
  size_t traces() const { return traces_.size(); }
  const std::vector<std::string>& measured() const { return measured_; }
  const std::string& stream_layers() const { return layers_; }
  Provenance from() const { return joined(from_, traces_.size()); }

 private:
  const Measured& cell(size_t budget, size_t record) const {
    return cells_(static_cast<int64_t>(budget), static_cast<int64_t>(record));
  }

  static void add(const Dataset& results, size_t trace, int64_t record, int64_t column,
                  Measured& cell) {
    const auto share = [&](const char* name) {
      return results.has(name) ? results.row(name, {record, column})[0] : kUndefined;
    };
    cell.held.push_back(held_of_budget(results, record, column));
    cell.shares[trace].held += share("held_share");
    cell.shares[trace].given += share("budget_share");
    for (size_t c = 0; c < criteria().size(); ++c)
      if (results.has(criteria()[c].variable))
        cell.series[c][trace].push_back(over_layers(results, criteria()[c], record, column));
  }

  const StudyOptions& options_;
  std::vector<std::string> traces_;  ///< digests
  std::vector<std::string> measured_;
  std::string layers_;
  std::vector<Provenance> from_;  ///< of each results file
  Table<Measured> cells_;         ///< [budget][record]
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
  const SettingSeries& first = settings.front();
  for (const SettingSeries& one : settings)
    for (size_t trace = 0; trace < one.size(); ++trace)
      for (size_t t = 0; t < one[trace].size(); ++t)
        if (std::abs(one[trace][t] - first[trace][t]) > kRounding) return true;
  return false;
}

/// The settings of a preset at one budget by one criterion; empty when they cannot be compared.
std::vector<SettingSeries> comparable(const Series& series, size_t criterion, size_t budget,
                                      const std::vector<size_t>& records) {
  std::vector<SettingSeries> settings;
  for (const size_t r : records) {
    settings.push_back(series.of(criterion, budget, r));
    if (settings.back().empty()) return {};
  }
  drop_undefined(settings);
  return differ(settings) ? settings : std::vector<SettingSeries>();
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
  std::vector<Comparison> presets, all;
  for (size_t r = 0; r < options.records.size(); ++r) {
    const std::string record = options.records[r].canonical();
    const std::string preset = record.substr(0, record.find(','));
    auto found = std::ranges::find(presets, preset, &Comparison::preset);
    if (found == presets.end()) found = presets.insert(presets.end(), {preset, {}, 0, 0});
    found->records.push_back(r);
  }
  for (const Comparison& preset : presets)
    for (size_t c = 0; c < criteria().size() && preset.records.size() > 1; ++c)
      for (size_t b = 0; b < options.budgets.size(); ++b)
        if (contains(measures, criteria()[c].variable))
          all.push_back({preset.preset, preset.records, c, b});
  return all;
}

/// Which settings may be the best: those that hold what the budget gives on every trace. Where none
/// does: those that hold as the first, if all do, so that only their own changes are compared.
std::vector<bool> ranked(const Series& series, const Comparison& of) {
  std::vector<bool> found;
  const auto all = [&](size_t record, const auto& holds) {
    const auto held = series.held(of.budget, record);
    for (size_t k = 0; k < held.size(); ++k)
      if (!std::isnan(held[k]) && !holds(k, held[k])) return false;
    return true;
  };
  for (const size_t r : of.records)
    found.push_back(
        all(r, [](size_t, double held) { return unranked_by(held) == Unranked::ranked; }));
  if (contains(found, true)) return found;
  const auto first = series.held(of.budget, of.records.front());
  const auto as_first = [&](size_t r) {
    return all(r, [&](size_t k, double held) {
      return k < first.size() && unranked_by(held / first[k]) == Unranked::ranked;
    });
  };
  if (std::ranges::all_of(of.records, as_first)) found.assign(found.size(), true);
  return found;
}

/// Of the settings that are not ranked the best where they hold what the budget gives, beside the
/// best of the ranked if there is one.
void add_equal_bytes(BestRow& row, const Series& series, const StudyOptions& options,
                     const Comparison& of, const std::vector<bool>& in, const SettingSeries* best) {
  std::vector<SettingSeries> settings;
  std::vector<size_t> records;
  if (best) settings.push_back(*best);
  for (size_t k = 0; k < in.size(); ++k) {
    if (in[k]) continue;
    SettingSeries own = series.at_equal_bytes(of.criterion, of.budget, of.records[k]);
    if (own.empty()) {
      ++row.nowhere;
      continue;
    }
    settings.push_back(std::move(own));
    records.push_back(of.records[k]);
  }
  if (records.empty()) return;
  std::vector<bool> rivals(settings.size(), true);
  if (best) rivals[0] = false;
  drop_undefined(settings);
  row.equal_bytes = best_setting(settings, best ? 0 : -1, row.criterion, options.seed, rivals);
  row.equal_bytes_record =
      options.records[records[row.equal_bytes.best - (best ? 1 : 0)]].canonical();
}

std::optional<BestRow> best_row(const Series& series, const StudyOptions& options,
                                const Comparison& of) {
  const std::vector<SettingSeries> settings = comparable(series, of.criterion, of.budget,
                                                         of.records);
  if (settings.empty()) return std::nullopt;
  int usual = -1;
  for (size_t k = 0; k < of.records.size(); ++k)
    if (options.records[of.records[k]].canonical() == of.preset) usual = static_cast<int>(k);
  const std::vector<bool> in = ranked(series, of);
  BestRow row{.preset = of.preset,
              .settings = of.records.size(),
              .criterion = criteria()[of.criterion],
              .budget = options.budgets[of.budget].label,
              .off_budget = static_cast<size_t>(std::ranges::count(in, false))};
  if (row.off_budget == in.size()) {
    add_equal_bytes(row, series, options, of, in, nullptr);
    return row;
  }
  row.found = best_setting(settings, usual, row.criterion, options.seed, in);
  const size_t best = of.records[row.found.best];
  row.record = options.records[best].canonical();
  row.held = mean(series.held(of.budget, best));
  if (row.off_budget > 0) add_equal_bytes(row, series, options, of, in, &settings[row.found.best]);
  return row;
}

}  // namespace

BestTable best_settings(const SweepPlan& plan, const SweepRun& sweep,
                        const std::vector<std::string>& measures) {
  Series series(plan);
  for (const SweepJob& job : plan.jobs()) series.add(job, read_known_results(sweep.target(job)));
  const StudyOptions& options = plan.jobs().front().options;
  BestTable table{series.traces(), series.measured(), series.stream_layers(), {}, series.from()};
  const std::vector<Comparison> all = comparisons(options, measures);
  std::vector<std::optional<BestRow>> rows(all.size());
  parallel_for(std::ssize(all), [&](int64_t x) { rows[x] = best_row(series, options, all[x]); });
  for (std::optional<BestRow>& row : rows)
    if (row) table.rows.push_back(std::move(*row));
  return table;
}

}  // namespace kvsim
