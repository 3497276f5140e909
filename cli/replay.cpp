#include <fmt/format.h>
#include <fmt/ranges.h>

#include <chrono>

#include "analysis/dataset.hpp"
#include "analysis/measure.hpp"
#include "analysis/statistics.hpp"
#include "cli/command.hpp"
#include "cli/tables.hpp"
#include "cli/terminal.hpp"
#include "io/side_files.hpp"
#include "io/temporary_file.hpp"
#include "run/explain/explain.hpp"
#include "run/study/study.hpp"

namespace kvsim::cli::replay_command {
namespace {

namespace fs = std::filesystem;

std::vector<Option> options() {
  std::vector<Option> all = {
      {"out,o", "FILE",
       "results file (default: the trace's name with .nc, in this folder); with "
       "several traces their folder"},
      {"overwrite"},
      {"policy"},
      {"scores"},
      {"budget"},
      {"layers"},
      {"later"},
      {"metric"}};
  for (const StudyOption& option : study_options()) {
    if (option.known != nullptr) continue;  // --metric lists them
    all.push_back({option.flag, option.type == OptionType::flag ? "" : option.placeholder,
                   option.meaning, option.type == OptionType::names});
  }
  all.push_back(
      {"fragility", "",
       "also replay what each query of the window sees alone, the maximum over them, and "
       "DefensiveKV's step and published code, and compare estimated with true risk (metric risk); "
       "without --policy that of importance, heads competing and not, without --budget at 0.5"});
  all.insert(all.end(), {{"seed"}, {"backend"}, {"csv"}, {"json"}, {"table"}});
  return all;
}

/// Records that answer "which policy loses least on this trace?" without being asked further:
/// baselines, the papers' policies, KVzip and the two found here (studies/reread.md), hindsight.
const std::vector<std::string> kDefaultPolicies = {
    "random",           "streaming",   "knorm",  "tova",  "h2o",
    "snapkv",           "defensivekv", "restkv", "kvzip", "rehearsal:recent",
    "rehearsal:reread", "oracle-mean"};
const std::vector<std::string> kDefaultBudgets = {"0.1", "0.2", "0.3", "0.5", "0.7"};
/// Parts that --fragility takes apart: the heads of a layer compete, as Algorithm 2 of DefensiveKV
/// has it, and as many entries for each head beside it; and hindsight.
const std::vector<std::string> kFragilePolicies = {"importance,allocate=ada,ada_floor=0",
                                                   "importance", "oracle-mean"};
const std::vector<std::string> kFragileBudgets = {"0.5"};

/// What --policy and --budget say, or the useful default set: `default_policies` are records that
/// nobody typed, of which those that a trace cannot serve are left out instead of failing the run.
struct Request {
  StudyOptions options;  ///< without layers, which depend on the trace
  bool default_policies = false;
  std::vector<FragilityGroup> fragility;  ///< of --fragility; their records are in the options
};

/// The records that take those of the request apart; at least one of them must have a window.
void add_fragility(Request& request) {
  request.fragility = fragility_groups(request.options.records);
  if (request.fragility.empty())
    usage_error({.what = "no policy aggregates over a window of queries",
                 .where = "--fragility",
                 .expected = "a record with queries=window and a count as its window",
                 .hint = "importance and snapkv are"});
  for (const FragilityGroup& group : request.fragility) {
    for (const std::string& single : group.singles)
      request.options.records.push_back(Record::parse(single));
    for (const std::string& record : {group.max, group.defensive, group.published})
      request.options.records.push_back(Record::parse(record));
  }
}

Request read_request(const Values& values) {
  Request request;
  StudyOptions& options = request.options;
  const bool fragility = has(values, "fragility");
  request.default_policies = !has(values, "policy") && !fragility;
  options.records = records_of(values, fragility ? kFragilePolicies : kDefaultPolicies);
  options.budgets = budgets_of(values, fragility ? kFragileBudgets : kDefaultBudgets);
  if (fragility) add_fragility(request);
  options.seed = seed(values);
  read_measure_options(values, options);
  options.command_line = command_line();
  return request;
}

/// The records that this trace can serve, when they are the default ones; each of the others is
/// named on standard error with its reason. Typed records are returned as they are.
std::vector<Record> served_records(const Request& request, const TraceReader& reader,
                                   const std::vector<int>& layers) {
  if (!request.default_policies) return request.options.records;
  // A wrong name is no policy's fault.
  span_tokens(reader.info(), request.options.span_complements);
  std::vector<Record> served;
  std::map<std::string, std::pair<std::string, std::string>> left_out;  // need: records, why
  for (const Record& record : request.options.records) {
    StudyOptions alone = request.options;
    alone.records = {record};
    alone.layers = layers;
    alone.metrics.clear();
    try {
      plan_study(reader, alone);
      served.push_back(record);
    } catch (const Error& error) {
      if (error.fault() != Fault::bad_data) throw;
      const Error::Parts& why = error.parts();
      auto& [records, reason] = left_out[why.found + why.expected + why.hint];
      if (records.empty()) reason = error.what();
      records += (records.empty() ? "" : ", ") + record.canonical();
    }
  }
  for (const auto& [need, out] : left_out) note(out.first + " left out: " + out.second);
  return served;
}

/// The traces of a folder, by name, where one is given instead of a file.
std::vector<std::string> traces_of(const std::vector<std::string>& given) {
  std::vector<std::string> traces;
  for (const std::string& one : given) {
    std::error_code fault;
    if (!fs::is_directory(one, fault)) {
      traces.push_back(one);
      continue;
    }
    std::vector<std::string> found;
    for (const fs::directory_entry& entry : fs::directory_iterator(one, fault))
      if (entry.path().extension() == ".h5") found.push_back(entry.path().string());
    if (found.empty())
      usage_error(
          {"no trace in the folder", one, fault ? fault.message() : "", "files that end in .h5"});
    std::ranges::sort(found);
    traces.insert(traces.end(), found.begin(), found.end());
  }
  return traces;
}

/// One results file per trace: -o itself for one trace, else named after the traces in its folder.
std::vector<std::string> targets_of(const Values& values, const std::vector<std::string>& traces) {
  const std::string out = text(values, "out");
  if (traces.size() == 1 && !out.empty()) return {out};
  std::vector<std::string> targets;
  for (const std::string& trace : traces) {
    const fs::path name = fs::path(trace).stem().string() + ".nc";
    const std::string target = (fs::path(out) / name).string();
    if (contains(targets, target))
      usage_error({.what = "two traces of one name would share a results file",
                   .where = target,
                   .hint = "replay them one at a time, with -o"});
    targets.push_back(target);
  }
  return targets;
}

void check_targets(const Values& values, const std::vector<std::string>& targets,
                   const std::vector<std::string>& traces) {
  const bool overwrite = has(values, "overwrite");
  const std::string out = text(values, "out");
  std::error_code fault;
  if (traces.size() > 1 && !out.empty() && !fs::is_directory(out, fault)) {
    if (fs::exists(out, fault))
      usage_error({"not a folder", out, "", "a folder for several traces"});
    if (!fs::create_directory(out, fault))
      usage_error({"the folder cannot be made", out, fault.message()});
  }
  for (const std::string& target : targets) check_target(target, overwrite, traces);
  const std::string csv = text(values, "csv");
  if (csv.empty()) return;
  if (contains(targets, csv))
    usage_error({"the table would replace the results file", "--csv", csv});
  std::vector<std::string> inputs = traces;
  inputs.insert(inputs.end(), targets.begin(), targets.end());
  check_target(csv, overwrite, inputs);
}

/// --fragility compares estimated with true risk, too, where the trace holds what that needs.
void add_risk(const TraceReader& reader, StudyOptions& options) {
  StudyOptions with_risk = options;
  with_risk.metrics.insert("risk");
  try {
    plan_study(reader, with_risk);
    options = std::move(with_risk);
  } catch (const Error& error) {
    if (error.fault() != Fault::bad_data) throw;
    note(std::string("risk left out: ") + error.what());
  }
}

/// One trace ready to be replayed, everything checked.
struct Job {
  std::unique_ptr<TraceReader> reader;
  std::unique_ptr<Study> study;
  std::shared_ptr<Progress> progress;
};

Job prepare(const Values& values, const Request& request, std::unique_ptr<TraceReader> reader,
            Backend& backend) {
  Job job;
  job.reader = std::move(reader);
  const std::string& trace = job.reader->info().path;
  for (const std::string& warning : job.reader->warnings()) note(warning);
  StudyOptions options = request.options;
  options.layers = chosen_layers(values, job.reader->info());
  options.records = served_records(request, *job.reader, options.layers);
  if (options.records.empty())
    bad_data({"the trace can serve none of the default policies", trace});
  if (!request.fragility.empty()) add_risk(*job.reader, options);
  for (const std::string& line : make_bytes_equal(*job.reader, backend, options)) note(line);
  job.progress = std::make_shared<Progress>(fs::path(trace).filename().string());
  StudyHooks hooks;
  hooks.message = note;
  hooks.progress = [progress = job.progress](double done, const std::string& what) {
    progress->update(done, what);
  };
  job.study = std::make_unique<Study>(*job.reader, std::move(options), std::move(hooks));
  return job;
}

Dataset replay(Job& job, Backend& backend, const std::string& target) {
  using Clock = std::chrono::steady_clock;
  const auto since = [](Clock::time_point begin) {
    return std::chrono::duration<double>(Clock::now() - begin).count();
  };
  const auto begin = Clock::now();
  Dataset dataset = job.study->run(backend);
  job.progress->clear();
  const auto write_begin = Clock::now();
  write_results(dataset, target);
  const double write = since(write_begin), whole = since(begin);
  const PhaseTimes& times = job.study->times();
  const double known = times.read + times.score + times.rank + times.replay + times.project +
                       times.measure + write;
  detail(fmt::format("seconds: read {:.3f}, score {:.3f}, rank {:.3f}, replay {:.3f} ({:.0f} "
                     "GFLOP/s), project {:.3f}, measure {:.3f}, write {:.3f}, other {:.3f}, in all "
                     "{:.3f}",
                     times.read, times.score, times.rank, times.replay,
                     times.flops / times.replay / 1e9, times.project, times.measure, write,
                     whole - known, whole));
  return dataset;
}

/// The bands of --fragility instead of a line for each of their records.
std::string fragility_table(const Dataset& results, const std::vector<FragilityGroup>& groups) {
  std::string table = fmt::format("{:<21}{:<21}{:<21}{:<21}{}\n{:<21}", "", "stream error",
                                  "mean retained", "worst retained", "outliers", "");
  for (int measure = 0; measure < 4; ++measure)
    table += fmt::format("{:<6}{:<7}{}", "least", "median", measure < 3 ? "most    " : "most\n");
  const auto number = [](double value) {
    return std::isnan(value) ? std::string("-") : fmt::format("{:.3f}", value);
  };
  const auto band = [&](const Band& of) {
    table += fmt::format("{:<6}{:<7}{:<8}", number(of.low), number(of.middle), number(of.high));
  };
  const auto single = [&](const std::string& name, const FragilityMeasures<double>& of) {
    table += fmt::format("  {:<25}{:<21}{:<21}{:<21}{:g}\n", name, number(of.stream),
                         number(of.mean), number(of.min), of.outliers);
  };
  for (const FragilityRow& row : fragility_rows(results, groups)) {
    const auto& [stream, mean, worst, outliers] = row.single;
    table += fmt::format("{} at budget {}\n  {:<19}", printable(row.base), printable(row.budget),
                         "one query alone");
    for (const Band& of : {stream, mean, worst}) band(of);
    table += fmt::format("{:<6g}{:<7g}{:g}\n", outliers.low, outliers.middle, outliers.high);
    for (const auto& [name, measured] : row.others) single(name, measured);
  }
  if (const std::string layers = stream_error_layers(results); !layers.empty())
    table += "stream error: of " + layers + "\n";
  return table;
}

/// Estimated against true risk, means over layers; empty when it was not measured.
std::string risk_table(const Dataset& results) {
  if (!results.has("risk_spearman")) return "";
  std::string table = fmt::format("{:<21}{:>10}{:>16}{:>16}{:>14}\n", "estimate of true risk",
                                  "Spearman", "median ln ratio", "underestimated", "prior above");
  const auto& names = results.texts("estimator");
  for (int64_t e = 0; e < std::ssize(names); ++e) {
    const auto over_layers = [&](const char* variable) {
      std::vector<double> values;
      for (int64_t layer = 0; layer < results.size("layer"); ++layer)
        values.push_back(results.row(variable, {layer, e})[0]);
      return mean(values);
    };
    const double above = over_layers("risk_prior_exceeds");
    table += fmt::format("  {:<19}{:>10.3f}{:>16.3f}{:>16.3f}{:>14}\n", names[e],
                         over_layers("risk_spearman"), over_layers("risk_log_ratio_median"),
                         over_layers("risk_underestimated"),
                         std::isnan(above) ? "-" : fmt::format("{:.3f}", above));
  }
  return table;
}

/// Says so when errors, and the worst of them, are those of some of the steps only.
std::string steps_note(const Dataset& results) {
  if (!results.has("output_error")) return "";
  const int64_t steps = results.size("step");
  std::vector<bool> evaluated(steps, false);
  for (int64_t p = 0; p < results.size("policy"); ++p)
    for (int64_t b = 0; b < results.size("budget"); ++b)
      for (int64_t layer = 0; layer < results.size("layer"); ++layer) {
        const auto errors = results.row("output_error", {p, b, layer});
        for (size_t s = 0; s < errors.size(); ++s)
          if (!std::isnan(errors[s])) evaluated[s] = true;
      }
  const auto count = std::ranges::count(evaluated, true);
  if (count == 0 || count == steps) return "";
  return fmt::format("errors, and the worst of them, at {} of {} steps (--wo-steps 0: all)\n",
                     count, steps);
}

/// For a person: the table of one trace, and what else was asked for.
void print_text(const Values& values, const std::vector<FragilityGroup>& fragility,
                const TableSource& table, const Job& job) {
  const Dataset& results = *table.dataset;
  const SummaryStyle style{color_enabled(stdout), terminal_width(stdout)};
  fmt::print("{}\n{}", printable(table.trace),
             fragility.empty() ? summary_table(results, style) + steps_note(results)
                               : fragility_table(results, fragility) + risk_table(results));
  const std::string expected = expected_loss_table(results, job.reader->token_text());
  if (fragility.empty() && !expected.empty()) fmt::print("\n{}", expected);
  if (has(values, "equal-bytes")) fmt::print("\n{}", equal_bytes_table(results));
  if (const std::string idle = results.text_attribute(kIdleSettings); !idle.empty())
    fmt::print("\nwithout effect\n{}", printable_lines(idle));
}

void print_results(const Values& values, const std::vector<FragilityGroup>& fragility,
                   const std::vector<TableSource>& tables, const std::vector<Job>& jobs,
                   const std::vector<std::string>& targets) {
  if (has(values, "csv")) write_file(tidy_csv(tables), text(values, "csv"));
  if (has(values, "json")) {
    fmt::print("{}", printable_json(tidy_json(tables)));
    return;
  }
  if (verbosity() == Verbosity::quiet) return;
  const TableForm form = table_form(values);
  for (size_t t = 0; t < tables.size(); ++t) {
    const Dataset& results = *tables[t].dataset;
    if (t > 0) fmt::print("\n");
    if (form != TableForm::text)
      fmt::print("{}", printable_lines(table_text(paper_table(results, title_of(results)), form)));
    else
      print_text(values, fragility, tables[t], jobs[t]);
    note(targets[t] + " written");
  }
}

int run(const Values& values) {
  const auto traces = traces_of(values["trace"].as<std::vector<std::string>>());
  const Request request = read_request(values);
  if (table_form(values) != TableForm::text && has(values, "fragility"))
    usage_error({"only the table of policies and budgets has forms to paste", "--table",
                 "--fragility", "--table text"});
  const std::unique_ptr<Backend> backend = chosen_backend(values);
  const std::vector<std::string> targets = targets_of(values, traces);
  std::vector<std::unique_ptr<TraceReader>> readers;  // what is no trace is said before all else
  for (const std::string& trace : traces)
    readers.push_back(std::make_unique<TraceReader>(trace, text(values, "later")));
  check_targets(values, targets, traces);
  serve_functions(
      values, typed_words(), request.options.records, traces,
      has(values, "layers") ? chosen_layers(values, readers.front()->info()) : std::vector<int>());
  std::vector<Job> jobs;
  jobs.reserve(traces.size());
  for (std::unique_ptr<TraceReader>& reader : readers)
    jobs.push_back(prepare(values, request, std::move(reader), *backend));
  std::vector<Dataset> datasets;
  for (size_t t = 0; t < traces.size(); ++t)
    datasets.push_back(replay(jobs[t], *backend, targets[t]));
  std::vector<TableSource> tables;
  for (size_t t = 0; t < traces.size(); ++t)
    tables.push_back({fs::path(traces[t]).filename().string(), &datasets[t]});
  print_results(values, request.fragility, tables, jobs, targets);
  return kDone;
}

const bool registered = register_command(
    {.name = "replay",
     .summary = "replay policies at several budgets and measure what later tokens lose",
     .arguments = {{.name = "trace", .meaning = "trace files, or folders of them", .many = true}},
     .description =
         "Compresses the prompt's cache with every policy at every budget, replays the queries "
         "that\n"
         "came later, and writes one results file (netCDF-4) per trace. Without --policy and\n"
         "--budget a useful set runs, as far as the trace holds what it needs.\n"
         "`stream error`, of all layers together against the residual stream, is among the best\n"
         "predictors of what a model would lose (studies/prediction.md). `retained\n"
         "importance`, the papers' measure, is the share of attention times ||v W|| that falls\n"
         "on kept entries; `outliers` counts pairs of layer and step below 0.5; errors are\n"
         "relative to the layer's own output, or to the residual stream. Queries come from the\n"
         "run with the full cache, so that errors do not feed back into later layers or steps.",
     .options = options(),
     .examples = {"kvsim replay data/sample.h5",
                  "kvsim replay data/sample.h5 --policy snapkv --policy snapkv,window=64 "
                  "--budget 10%,20%,128 -o windows.nc"},
     .run = run});

}  // namespace
}  // namespace kvsim::cli::replay_command
