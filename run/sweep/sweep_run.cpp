#include <fmt/format.h>

#include <chrono>
#include <nlohmann/json.hpp>

#include "analysis/formulas.hpp"
#include "io/hdf5.hpp"
#include "io/results.hpp"
#include "io/temporary_file.hpp"
#include "run/study/known_results.hpp"
#include "run/study/study.hpp"
#include "run/sweep/sweep.hpp"

namespace kvsim {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

/// Another shard may be writing right now; nothing takes that long to write.
constexpr auto kAbandoned = std::chrono::hours(1);

void remove_abandoned(const std::string& folder) {
  std::error_code fault;
  const auto now = fs::file_time_type::clock::now();
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, fault)) {
    if (entry.path().extension() != ".part") continue;
    const auto written = entry.last_write_time(fault);
    if (!fault && now - written > kAbandoned) fs::remove(entry.path(), fault);
  }
}

/// The attribute `sweep` of a results file; nothing when there is none that could be read.
std::string sweep_of_file(const std::string& path) {
  try {
    return h5::InputFile(path, kResultsFile).text_attribute("/", "sweep").value_or("");
  } catch (const Error&) {
    return "";
  }
}

/// Sweep that a part says it belongs to.
struct PartOf {
  std::string id;
  std::string shard;
  std::vector<std::string> policies;
};

PartOf part_of(const std::string& path) {
  h5::InputFile file(path, kResultsFile);
  const auto text = file.text_attribute("/", "sweep");
  const auto json = ordered_json::parse(text.value_or(""), nullptr, false);
  PartOf part;
  try {
    part.id = json.at("id");
    part.shard = json.at("shard");
    part.policies = json.at("policies").get<std::vector<std::string>>();
  } catch (const nlohmann::json::exception&) {
    bad_data({"not a part of a sweep", path, "", "a results file of kvsim sweep"});
  }
  return part;
}

/// "a, b, c and 5 more"
std::string some_of(const std::vector<std::string>& names) {
  constexpr size_t kMost = 3;
  std::string text;
  for (size_t i = 0; i < std::min(names.size(), kMost); ++i)
    text += (text.empty() ? "" : "; ") + names[i];
  return names.size() > kMost ? fmt::format("{}; and {} more", text, names.size() - kMost) : text;
}

}  // namespace

SweepRun::SweepRun(const SweepPlan& plan, std::string folder, int64_t shard, int64_t shards)
    : plan_(plan), folder_(std::move(folder)), shard_(shard), shards_(shards),
      groups_(plan.groups(shard, shards)) {
  for (const size_t job : jobs())
    if (sweep_of_file(target(plan.jobs()[job])) == sweep_attribute(plan.jobs()[job]))
      complete_.insert(job);
}

std::string SweepRun::unit_path(const std::string& key) const {
  return (fs::path(folder_) / "units" / (key + ".nc")).string();
}

bool SweepRun::has_unit(const std::string& key) const {
  std::error_code fault;
  return fs::is_regular_file(unit_path(key), fault);
}

Dataset SweepRun::load_unit(const std::string& key) const {
  try {
    return read_known_results(unit_path(key));
  } catch (const Error& error) {
    Error::Parts parts = error.parts();
    parts.hint = "delete " + unit_path(key) + " and run the sweep again";
    throw Error(error.fault(), std::move(parts));
  }
}

std::string SweepRun::target(const SweepJob& job) const {
  const std::string part = shards_ == 1 ? "" : fmt::format(".part-{}-of-{}", shard_, shards_);
  return (fs::path(folder_) / (job.name + part + ".nc")).string();
}

std::set<size_t> SweepRun::jobs() const {
  std::set<size_t> jobs;
  for (const SweepGroup& group : groups_) jobs.insert(group.job);
  return jobs;
}

bool SweepRun::is_there(const SweepGroup& group, size_t unit) const {
  return complete_.contains(group.job) || has_unit(plan_.jobs()[group.job].units[unit].key);
}

std::string SweepRun::sweep_attribute(const SweepJob& job) const {
  ordered_json json;
  json["id"] = job.id;
  json["shard"] = fmt::format("{}/{}", shard_, shards_);
  for (const Record& record : job.options.records) json["policies"].push_back(record.canonical());
  return json.dump();
}

void SweepRun::prepare(bool overwrite, const std::vector<std::string>& inputs) const {
  const std::string units = (fs::path(folder_) / "units").string();
  std::error_code fault;
  fs::create_directories(units, fault);
  if (!fs::is_directory(units)) usage_error({"the folder cannot be made", units, fault.message()});
  remove_abandoned(units);
  for (const size_t j : jobs()) {
    const SweepJob& job = plan_.jobs()[j];
    // The sweep's own file stays.
    check_target(target(job), overwrite || complete_.contains(j), inputs);
  }
}

void SweepRun::run(Backend& backend, const std::string& command_line, const SweepHooks& hooks) {
  SweepProgress progress;
  std::vector<double> todo;  // units of each group that are missing
  for (const SweepGroup& group : groups_) {
    todo.push_back(static_cast<double>(
        std::ranges::count_if(group.units, [&](size_t unit) { return !is_there(group, unit); })));
    progress.all_units += static_cast<size_t>(todo.back());
    if (todo.back() > 0) progress.all_cost += group.seconds;
  }
  for (size_t g = 0; g < groups_.size(); ++g) {
    if (todo[g] == 0) continue;
    const SweepProgress before = progress;
    progress.what = plan_.jobs()[groups_[g].job].name;
    const auto advance = [&](double done) {
      progress.units = before.units + done * todo[g];
      progress.cost = before.cost + done * groups_[g].seconds;
    };
    work(
        groups_[g], backend,
        [&](double done) {
      advance(done);
      if (hooks.progress) hooks.progress(progress);
        },
        hooks);
    advance(1);
  }
  for (const size_t job : jobs()) {
    const bool done = complete_.contains(job);
    if (!done) write_target(job, backend, command_line);
    if (hooks.message)
      hooks.message(target(plan_.jobs()[job]) + (done ? " is there already" : " written"));
  }
}

/// The whole group, even when only some of it is missing: see SweepGroup.
void SweepRun::work(const SweepGroup& group, Backend& backend,
                    const std::function<void(double)>& progress, const SweepHooks& hooks) const {
  const SweepJob& job = plan_.jobs()[group.job];
  StudyOptions options = job.options;
  options.records.clear();
  for (const size_t unit : group.units) options.records.push_back(job.options.records[unit]);
  StudyHooks said;
  said.progress = [&](double done, const std::string&) { progress(done); };
  for (const std::string& line : make_bytes_equal(*job.reader, backend, options))
    if (hooks.message) hooks.message(job.name + ": " + line);
  Study study(*job.reader, std::move(options), std::move(said));
  const Dataset results = study.run(backend);
  for (const size_t unit : group.units) {
    const std::string& key = job.units[unit].key;
    if (has_unit(key)) continue;
    ResultsJoin one({job.options.records[unit].canonical()});
    one.add(results, key, true);
    write_results(one.finish(), unit_path(key));
  }
}

void SweepRun::write_target(size_t number, Backend& backend,
                            const std::string& command_line) const {
  const SweepJob& job = plan_.jobs()[number];
  StudyOptions options = job.options;
  options.command_line = command_line;
  std::set<size_t> units;
  for (const SweepGroup& group : groups_)
    if (group.job == number) units.insert(group.units.begin(), group.units.end());
  std::vector<Record> records;
  std::vector<std::string> names;
  for (const size_t unit : units) {
    records.push_back(options.records[unit]);
    names.push_back(records.back().canonical());
  }
  ResultsJoin join(names);
  for (const size_t unit : units) {
    const std::string& key = job.units[unit].key;
    join.add(load_unit(key), unit_path(key));
  }
  Dataset whole = join.finish();
  // Layers that are left alone, and budgets that collapse, are known to the units only.
  const auto& layers = whole.values<int32_t>("layer");
  options.layers.assign(layers.begin(), layers.end());
  const auto steps = evaluated_steps(job.reader->info().steps(), *options.wo_steps);
  describe_run(whole, *job.reader, options, records, backend, std::ssize(steps));
  whole.set_attribute("sweep", sweep_attribute(job));
  write_results(whole, target(job));
}

Dataset merge_parts(const std::vector<std::string>& paths, const std::string& command_line) {
  const PartOf first = part_of(paths.front());
  ResultsJoin join(first.policies);
  std::vector<std::string> shards;
  for (const std::string& path : paths) {
    const PartOf part = part_of(path);
    if (part.id != first.id)
      bad_data({.what = "a part of another sweep",
                .where = path,
                .expected = "a part of the same sweep as " + paths.front(),
                .hint = "trace, policies, budgets, options and version must be the same"});
    join.add(read_known_results(path), path);
    shards.push_back(part.shard);
  }
  const std::vector<std::string> missing = join.missing();
  if (!missing.empty())
    bad_data({fmt::format("{} of {} policies are missing", missing.size(), first.policies.size()),
              "merge", "shards " + some_of(shards), "every part of the sweep",
              "missing: " + some_of(missing)});
  Dataset whole = join.finish();
  const std::string before = whole.text_attribute("history");
  whole.set_attribute("history",
                      before + (before.empty() ? "" : "\n") + history_line(command_line));
  ordered_json sweep;
  sweep["id"] = first.id;
  sweep["shard"] = "1/1";
  sweep["policies"] = first.policies;
  whole.set_attribute("sweep", sweep.dump());
  return whole;
}

}  // namespace kvsim
