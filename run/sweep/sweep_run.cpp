#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>

#include "io/hdf5.hpp"
#include "io/side_files.hpp"
#include "io/temporary_file.hpp"
#include "run/sweep/sweep.hpp"

namespace kvsim {
namespace {

using nlohmann::ordered_json;

/// Equal to the bit: what does not depend on the policy may hold NaN, which equals nothing.
bool same(const Variable& a, const Variable& b) {
  if (a.dims != b.dims || a.values.index() != b.values.index()) return false;
  const auto* x = std::get_if<std::vector<double>>(&a.values);
  if (x == nullptr) return a.values == b.values;
  const auto& y = std::get<std::vector<double>>(b.values);
  return x->size() == y.size() && std::memcmp(x->data(), y.data(), x->size() * sizeof(double)) == 0;
}

/// A results file with some policies of the whole, and where they stand there.
struct Part {
  std::string path;
  Dataset results;
  std::vector<int64_t> places = {};
};

/// Rows of a variable over policies go to their places in the whole.
void copy_rows(const Variable& variable, const Part& part, Variable& whole) {
  const auto copy = [&](const auto& values) {
    auto to = std::get<std::remove_cvref_t<decltype(values)>>(whole.values).begin();
    const int64_t length = std::ssize(values) / std::max<int64_t>(1, std::ssize(part.places));
    for (int64_t p = 0; p < std::ssize(part.places); ++p)
      std::copy_n(values.begin() + p * length, length, to + part.places[p] * length);
  };
  std::visit(copy, variable.values);
}

/// A variable of the whole; none where no part has it.
std::optional<Variable> joined(const VariableDeclaration& declaration,
                               const std::vector<Part>& parts, const Dataset& whole) {
  std::optional<Variable> found;
  for (const Part& part : parts) {
    const Variable* const variable = part.results.find(declaration.name);
    if (variable == nullptr) continue;
    if (!variable->dims.empty() && variable->dims[0] == "policy") {
      if (!found) found = make_variable(declaration, whole);
      copy_rows(*variable, part, *found);
    } else if (!found) {
      found = *variable;
    } else if (!same(*found, *variable)) {
      bad_data({"belongs to another run", part.path, "other values of " + found->name});
    }
  }
  return found;
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
  const std::filesystem::path trace = job.reader->info().path;
  whole.set_attribute("history", history_line(command_line));
  whole.set_attribute("trace", trace.filename().string());
  whole.set_attribute(kTracePath, std::filesystem::canonical(trace).string());
  whole.set_attribute("axes", grid_axes_json(job.options.records));
  whole.set_attribute("sweep", job.sweep);
  write_results(whole, job.path);
}

}  // namespace

Dataset join_results(const std::vector<std::string>& policies,
                     const std::vector<std::string>& paths) {
  std::vector<Part> parts;
  std::vector<std::string> from(policies.size());  // [policy]: the part that has it
  std::vector<ordered_json> configs(policies.size());
  Dataset whole;
  for (const std::string& path : paths) {
    const Part& part = parts.emplace_back(Part{path, read_known_results(path)});
    const bool first = parts.size() == 1;
    for (const auto& [name, size] : part.results.dimensions()) {
      if (first) whole.add_dimension(name, name == "policy" ? std::ssize(policies) : size);
      if (name != "policy" && (!whole.has_dimension(name) || whole.size(name) != size))
        bad_data({"belongs to another run", path, name + " of another length"});
    }
    for (const auto& [name, value] : part.results.attributes())
      if (first && name != kIdleSettings)  // idle settings are of one part's policies
        whole.set_attribute(name, value);
    const auto config = ordered_json::parse(part.results.text_attribute("config"), nullptr, false);
    const auto own = config.is_object() ? config.value("policies", ordered_json()) : config;
    for (const std::string& policy : part.results.texts("policy")) {
      const int64_t place = std::ranges::find(policies, policy) - policies.begin();
      if (place == std::ssize(policies))
        bad_data({"a policy that is not in the sweep", path, policy});
      if (!from[place].empty())
        bad_data({"a policy twice", path, policy, "parts without doubles",
                  "it is in " + from[place] + ", too"});
      from[place] = path;
      if (const size_t p = parts.back().places.size(); own.is_array() && p < own.size())
        configs[place] = own[p];
      parts.back().places.push_back(place);
    }
  }
  for (const VariableDeclaration& declaration : declared_variables())
    if (auto variable = joined(declaration, parts, whole)) whole.add(std::move(*variable));
  std::vector<std::string> missing;
  for (size_t p = 0; p < policies.size(); ++p)
    if (from[p].empty()) missing.push_back(policies[p]);
  const std::string what = fmt::format("{} of {} policies are missing", missing.size(),
                                       policies.size());
  if (missing.size() > 3) missing = {missing[0], missing[1], missing[2], "..."};
  if (!missing.empty())
    bad_data({what, "merge", "", "every part of the sweep",
              fmt::format("missing: {}", fmt::join(missing, "; "))});
  auto config = ordered_json::parse(whole.text_attribute("config"), nullptr, false);
  if (!config.is_object()) return whole;
  config["policies"] = configs;
  whole.set_attribute("config", config.dump());
  return whole;
}

void SweepPlan::run(Backend& backend, const std::string& command_line,
                    const StudyHooks& hooks) const {
  make_folder(units_.string());
  remove_abandoned(units_.string());
  std::vector<std::pair<const SweepJob*, const SweepGroup*>> missing;
  double all = 0, ready = 0;  // seconds, as estimated
  for (const SweepJob& job : jobs_)
    for (const SweepGroup& group : job.groups) {
      if (group.there) continue;
      missing.emplace_back(&job, &group);
      all += group.seconds;
    }
  for (size_t g = 0; const auto& [job, group] : missing) {
    const std::string what = fmt::format("group {} of {}, {}", ++g, missing.size(), job->name);
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
