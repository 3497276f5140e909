#include <fmt/format.h>

#include <chrono>
#include <nlohmann/json.hpp>

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

/// Another shard may be writing right now; nothing takes an hour to write.
void remove_abandoned(const fs::path& folder) {
  std::error_code fault;
  const auto now = fs::file_time_type::clock::now();
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, fault)) {
    if (entry.path().extension() != ".part") continue;
    const auto written = entry.last_write_time(fault);
    if (!fault && now - written > std::chrono::hours(1)) fs::remove(entry.path(), fault);
  }
}

/// The attribute `sweep` of a part: `id` and `policies` of the whole, and its own `shard`.
ordered_json part_of(const std::string& path) {
  const auto text = h5::InputFile(path, kResultsFile).text_attribute("/", "sweep");
  auto json = ordered_json::parse(text.value_or(""), nullptr, false);
  try {
    json.at("id").get<std::string>();
    json.at("policies").get<std::vector<std::string>>();
    return json;
  } catch (const nlohmann::json::exception&) {
    bad_data({"not a part of a sweep", path, "", "a results file of kvsim sweep"});
  }
}

void work(const SweepJob& job, const SweepGroup& group, Backend& backend, const StudyHooks& hooks) {
  StudyOptions options = job.options;
  options.records.clear();
  for (const size_t unit : group.units) options.records.push_back(job.options.records[unit]);
  for (const std::string& line : make_bytes_equal(*job.reader, backend, options))
    if (hooks.message) hooks.message(job.name + ": " + line);
  // What else a study says was said when the sweep was planned.
  Study study(*job.reader, std::move(options), {nullptr, hooks.progress});
  write_results(study.run(backend), group.path);
}

void write(const SweepJob& job, const std::string& command_line) {
  std::set<size_t> units;
  std::vector<std::string> policies, paths;
  for (const SweepGroup& group : job.groups) {
    paths.push_back(group.path);
    units.insert(group.units.begin(), group.units.end());
  }
  for (const size_t unit : units) policies.push_back(job.options.records[unit].canonical());
  Dataset whole;
  try {
    whole = join_results(policies, paths);
  } catch (const Error& error) {
    Error::Parts parts = error.parts();
    parts.hint = "damaged later: delete it and run the sweep again";
    throw Error(error.fault(), std::move(parts));
  }
  // A group may be older, from before the trace was moved.
  const fs::path trace = job.reader->info().path;
  whole.set_attribute("history", history_line(command_line));
  whole.set_attribute("trace", trace.filename().string());
  whole.set_attribute(kTracePath, fs::canonical(trace).string());
  whole.set_attribute("axes", grid_axes_json(job.options.records));
  whole.set_attribute("sweep", job.sweep);
  write_results(whole, job.path);
}

}  // namespace

void SweepPlan::run(Backend& backend, const std::string& command_line,
                    const StudyHooks& hooks) const {
  make_folder(units_.string());
  remove_abandoned(units_);
  std::vector<std::pair<const SweepJob*, const SweepGroup*>> missing;
  double all = 0, ready = 0;  // seconds, as estimated
  for (const SweepJob& job : jobs_)
    for (const SweepGroup& group : job.groups) {
      if (group.there) continue;
      missing.emplace_back(&job, &group);
      all += group.seconds;
    }
  for (size_t g = 0; g < missing.size(); ++g) {
    const auto& [job, group] = missing[g];
    const std::string what = fmt::format("group {} of {}, {}", g + 1, missing.size(), job->name);
    const auto progress = [&, seconds = group->seconds](double done, const std::string&) {
      if (hooks.progress) hooks.progress((ready + done * seconds) / all, what);
    };
    work(*job, *group, backend, {hooks.message, progress});
    ready += group->seconds;
  }
  for (const SweepJob& job : jobs_) {
    if (!job.there) write(job, command_line);
    if (hooks.message) hooks.message(job.path + (job.there ? " is there already" : " written"));
  }
}

Dataset merge_parts(const std::vector<std::string>& paths, const std::string& command_line) {
  ordered_json whole = part_of(paths.front());
  for (const std::string& path : paths)
    if (part_of(path)["id"] != whole["id"])
      bad_data({.what = "a part of another sweep",
                .where = path,
                .expected = "a part of the same sweep as " + paths.front(),
                .hint = "trace, policies, budgets, options and version must be the same"});
  Dataset joined = join_results(whole["policies"], paths);
  joined.set_attribute("history",
                       joined.text_attribute("history") + "\n" + history_line(command_line));
  whole["shard"] = "1/1";
  joined.set_attribute("sweep", whole.dump());
  return joined;
}

}  // namespace kvsim
