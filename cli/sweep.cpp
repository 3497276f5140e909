#include "run/sweep/sweep.hpp"

#include <fmt/format.h>

#include <chrono>
#include <nlohmann/json.hpp>

#include "cli/command.hpp"
#include "cli/tables.hpp"
#include "cli/terminal.hpp"
#include "io/side_files.hpp"
#include "io/temporary_file.hpp"

namespace kvsim::cli::sweep_commands {
namespace {

int run_merge(const Values& values) {
  const auto parts = values["part"].as<std::vector<std::string>>();
  const std::string out = text(values, "out");
  if (out.empty()) usage_error({"missing -o", "merge", "", "kvsim merge PART... -o OUT.nc"});
  check_target(out, has(values, "overwrite"), parts);
  write_results(merge_parts(parts, command_line()), out);
  note(out + " written");
  return kDone;
}

const bool merge_registered = register_command(
    {.name = "merge",
     .summary = "join the parts that the shards of a sweep wrote",
     .arguments = {{.name = "part", .meaning = "parts of one results file", .many = true}},
     .description =
         "Every part must be of the same sweep, no policy may be there twice, and none may be\n"
         "missing; the file that is not right is named.",
     .options = {{"out,o", "FILE", "results file of the whole sweep on one trace"}, {"overwrite"}},
     .examples = {"kvsim merge smoothing/sample.part-1-of-2.nc smoothing/sample.part-2-of-2.nc "
                  "-o smoothing/sample.nc",
                  "kvsim merge smoothing/sample.part-*.nc -o smoothing.nc --overwrite"},
     .run = run_merge});

using Json = nlohmann::ordered_json;

/// Number and count of --shard, which knows nothing of the best settings.
std::pair<int64_t, int64_t> chosen_shard(const Values& values) {
  if (!has(values, "shard")) return {1, 1};
  const std::string typed = text(values, "shard");
  const size_t slash = typed.find('/');
  if (slash == std::string::npos) usage_error({"not a share", "--shard", typed, "I/N, e.g. 1/4"});
  const int64_t count = parse_count(typed.substr(slash + 1), "--shard", 1, 1000000);
  for (const char* table : {"csv", "json", "metric", "table"})
    if (count > 1 && has(values, table) && !has(values, "plan"))
      usage_error({.what = "one share does not know the best settings",
                   .where = std::string("--") + table,
                   .hint = "run the sweep without --shard where the merged files are"});
  return {parse_count(typed.substr(0, slash), "--shard", 1, count), count};
}

/// The work and its cost.
Json planned(const SweepPlan& plan) {
  Json units = Json::array(), files = Json::array();
  double seconds = 0;
  int64_t memory = 0, groups = 0;
  for (const SweepJob& job : plan.jobs()) {
    files.push_back(job.path);
    groups += std::ssize(job.groups);
    for (const SweepGroup& group : job.groups) {
      for (const size_t unit : group.units)
        units.push_back({{"results", job.name},
                         {"policy", job.options.records[unit].canonical()},
                         {"done", group.there},
                         {"seconds", job.seconds[unit] / threads()}});
      if (group.there) continue;
      seconds += group.seconds / threads();
      memory = std::max(memory, group.memory);
    }
  }
  return {{"units", units},     {"files", files},       {"groups", groups},
          {"seconds", seconds}, {"threads", threads()}, {"memory_bytes", memory}};
}

void print_plan(const Json& all) {
  size_t there = 0;
  for (const Json& unit : all["units"]) {
    there += unit["done"] ? 1 : 0;
    fmt::print("{}  {:>8}  {}  {}\n", unit["done"] ? "done" : "to do", duration(unit["seconds"]),
               printable(unit["results"]), printable(unit["policy"]));
  }
  fmt::print("{} in {}, {} of them done; results files: {}\n", counted(all["units"].size(), "unit"),
             counted(all["groups"], "group"), there, all["files"].size());
  for (const Json& file : all["files"]) fmt::print("  {}\n", printable(file));
  fmt::print("estimated: {} on {}, {} MiB of memory\n", duration(all["seconds"]),
             counted(all["threads"], "thread"), all["memory_bytes"].get<int64_t>() >> 20);
}

/// Summary of the whole sweep; of shards, only the merged files can say it.
void print_best(const Values& values, const SweepPlan& plan,
                const std::vector<std::string>& asked) {
  const bool printed = has(values, "json") || verbosity() != Verbosity::quiet;
  if (!printed && !has(values, "csv")) return;
  const BestTable table = best_settings(plan, asked.empty() ? judged_measures() : asked);
  if (has(values, "csv")) write_file(best_csv(table), text(values, "csv"));
  if (!printed) return;
  const auto shown = asked.empty() ? usual_measures(table.measured) : asked;
  fmt::print("{}",
             has(values, "json") ? best_json(table) : best_text(table, shown, table_form(values)));
}

/// Measures of --metric; each must be in the results of every trace.
std::vector<std::string> asked_measures(const Values& values, const SweepPlan& plan) {
  const std::vector<std::string> known = judged_measures();
  const auto asked = chosen_names(texts(values, "metric"), "metric", known, known);
  for (const SweepJob& job : plan.jobs())
    for (const std::string& name : asked)
      if (contains(declared(name).needs, &kResidualNorm) && !job.reader->info().has_residual_norm)
        bad_data({"--metric " + name + " cannot be measured", job.reader->info().path,
                  "no residual_norm"});
  return asked;
}

/// A sweep file may come from somebody else: what it runs must have been asked for by name.
void check_functions(const Values& values, const SweepConfig& config) {
  const std::vector<std::string> allowed = texts(values, "allow");
  for (const Record& record : config.options.records) {
    const std::string& function = record.settings.text("scores");
    if (!is_function(function)) continue;
    const std::string file = function_file(function);
    std::error_code fault;
    if (std::ranges::none_of(allowed, [&](const std::string& one) {
          return one == file || std::filesystem::equivalent(one, file, fault);
        }))
      usage_error({.what = "a function in Python is run only when its file is named",
                   .where = config.path,
                   .found = function,
                   .hint = "--allow " + file});
  }
}

/// The units of this share that are missing.
void work(const Values& values, const SweepConfig& config, const SweepPlan& plan,
          Backend& backend) {
  std::vector<std::string> inputs = config.traces;
  inputs.push_back(config.path);
  make_folder(text(values, "out"));
  for (const SweepJob& job : plan.jobs())  // the sweep's own file stays
    check_target(job.path, has(values, "overwrite") || job.there, inputs);
  if (has(values, "csv")) check_target(text(values, "csv"), has(values, "overwrite"), inputs);
  if (plan.jobs().empty()) note("nothing to do in this share");
  hint_when_interrupted("finished units are kept: run the same command again and it goes on");
  Progress bar("sweep", std::chrono::seconds(60));
  const auto message = [&](const std::string& said) {
    bar.clear();
    note(said);
  };
  plan.run(backend, command_line(), {message, std::bind_front(&Progress::update, &bar)});
  hint_when_interrupted(nullptr);
}

int run_sweep(const Values& values) {
  SweepConfig config = read_sweep_config(text(values, "config"));
  if (has(values, "trace")) config.traces = texts(values, "trace");
  if (!has(values, "scores")) check_functions(values, config);
  const auto [shard, shards] = chosen_shard(values);
  table_form(values);  // refused before any work
  if (!has(values, "out"))
    usage_error({"missing -o", "sweep", "", "kvsim sweep CONFIG.toml -o DIR"});
  const std::string folder = text(values, "out");
  const std::unique_ptr<Backend> backend = chosen_backend(values);
  serve_functions(values, typed_words(), config.options.records, config.traces, config.layers,
                  has(values, "plan") ? "" : folder + "/scores");
  const SweepPlan plan(config, note, folder, shard, shards);
  const std::vector<std::string> asked = asked_measures(values, plan);
  if (has(values, "plan")) {
    const Json all = planned(plan);
    has(values, "json") ? fmt::print("{}\n", printable_json(all.dump(2))) : print_plan(all);
    return kDone;
  }
  work(values, config, plan, *backend);
  if (shards == 1) print_best(values, plan, asked);
  return kDone;
}

const bool sweep_registered = register_command(
    {.name = "sweep",
     .summary = "replay a grid of policies, budgets, traces and seeds; resumes where it stopped",
     .arguments = {{.name = "config", .meaning = "TOML file; lists in it are axes of a grid"}},
     .description =
         "Lists in the file are axes of a grid. Writes one results file per trace (and seed, when\n"
         "there are several) into the folder of -o. Finished units are kept in its folder units/:\n"
         "run again, only what is missing is done.\n"
         "Shards may run on different machines. Ends with the best setting of each preset per\n"
         "budget, with intervals: by stream error, the best predictor of what a model\n"
         "loses (studies/prediction.md), and by retained importance, the papers' measure.",
     .options =
         {{"out,o", "FILE", "folder of the results files and the finished units, made when absent"},
          {"overwrite"},
          {"plan", "", "print what would be done, and what it costs, and do nothing"},
          {"shard", "I/N", "do share I of N (I = 1..N) only; `kvsim merge` joins the parts"},
          {"trace", "FILE", "trace to use instead of those of the file; repeatable", true},
          {"backend"},
          {"allow", "FILE.py",
           "run the functions of this file that the sweep file names; repeatable", true},
          {"metric", "LIST",
           "measures that settings are judged by, repeatable: stream_error, retained_importance, "
           "output_error, residual_error (default: the first two; --csv and --json have all)",
           true},
          {"csv", "FILE", "also write the best settings as a table"},
          {"scores"},
          {"json"},
          {"table"}},
     .examples = {"kvsim sweep data/sweeps/restkv_smoothing.toml -o smoothing --plan",
                  "kvsim sweep data/sweeps/restkv_smoothing.toml -o smoothing --shard 1/2"},
     .run = run_sweep});

}  // namespace
}  // namespace kvsim::cli::sweep_commands
