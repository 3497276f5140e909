#include <fmt/format.h>
#include <fmt/ranges.h>

#include <chrono>
#include <nlohmann/json.hpp>

#include "io/hdf5.hpp"
#include "io/side_files.hpp"
#include "io/temporary_file.hpp"
#include "run/study/study.hpp"
#include "run/sweep/sweep.hpp"

namespace kvsim {
namespace {

using nlohmann::ordered_json;

/// Copies row `from` of the leading axis to row `to`; a row has `length` values.
void copy_row(const VariableValues& source, int64_t from, VariableValues& target, int64_t to,
              int64_t length) {
  std::visit(
      [&](const auto& values) {
    auto& out = std::get<std::remove_cvref_t<decltype(values)>>(target);
    std::copy_n(values.begin() + from * length, length, out.begin() + to * length);
      },
      source);
}

/// Equal to the bit: what does not depend on the policy may hold NaN, which equals nothing.
bool same(const Variable& a, const Variable& b) {
  if (a.dims != b.dims || a.values.index() != b.values.index()) return false;
  const auto* x = std::get_if<std::vector<double>>(&a.values);
  if (x == nullptr) return a.values == b.values;
  const auto& y = std::get<std::vector<double>>(b.values);
  return x->size() == y.size() && std::memcmp(x->data(), y.data(), x->size() * sizeof(double)) == 0;
}

/// The whole, of what the parts so far have.
class Whole {
 public:
  explicit Whole(const std::vector<std::string>& policies)
      : policies_(policies), from_(policies.size()), config_(policies.size()) {}

  void add(const Dataset& part, const std::string& path) {
    if (variables_.empty()) begin(part);
    const std::vector<int64_t> places = places_of(part, path);
    for (const Dimension& dimension : part.dimensions()) {
      if (dimension.name == "policy") continue;
      if (!whole_.has_dimension(dimension.name) || whole_.size(dimension.name) != dimension.size)
        bad_data({"belongs to another run", path, dimension.name + " of another length"});
    }
    for (const VariableDeclaration& declaration : declared_variables()) {
      const Variable* const variable = part.find(declaration.name);
      if (variable == nullptr || variable->name == "policy") continue;
      const auto [known, added] = variables_.try_emplace(variable->name, *variable);
      Variable& whole = known->second;
      if (variable->dims.empty() || variable->dims[0] != "policy") {
        if (!added && !same(whole, *variable))
          bad_data({"belongs to another run", path, "other values of " + variable->name});
        continue;
      }
      if (added) whole = make_variable(declaration, whole_);
      const int64_t length = whole_.count({variable->dims.begin() + 1, variable->dims.end()});
      for (int64_t p = 0; p < std::ssize(places); ++p)
        copy_row(variable->values, p, whole.values, places[p], length);
    }
  }

  Dataset finish() {
    std::vector<std::string> missing;
    for (size_t p = 0; p < policies_.size(); ++p)
      if (from_[p].empty()) missing.push_back(policies_[p]);
    const auto some = std::span(missing).first(std::min<size_t>(missing.size(), 3));
    if (!missing.empty())
      bad_data({fmt::format("{} of {} policies are missing", missing.size(), policies_.size()),
                "merge", "", "every part of the sweep",
                fmt::format("missing: {}{}", fmt::join(some, "; "),
                            some.size() < missing.size() ? "; ..." : "")});
    for (const VariableDeclaration& declaration : declared_variables())
      if (const auto found = variables_.find(declaration.name); found != variables_.end())
        whole_.add(std::move(found->second));
    auto config = ordered_json::parse(whole_.text_attribute("config"), nullptr, false);
    if (config.is_object()) {
      config["policies"] = config_;
      whole_.set_attribute("config", config.dump());
    }
    return std::move(whole_);
  }

 private:
  /// The whole has the shape of its first part.
  void begin(const Dataset& part) {
    for (const Dimension& dimension : part.dimensions())
      whole_.add_dimension(dimension.name,
                           dimension.name == "policy" ? std::ssize(policies_) : dimension.size);
    for (const Attribute& attribute : part.attributes())
      if (attribute.name != kIdleSettings)  // of the policies of one part
        whole_.set_attribute(attribute.name, attribute.value);
    Variable& policy = variables_["policy"] = part.at("policy");
    policy.values = policies_;
  }

  /// Where the policies of a part stand in the whole.
  std::vector<int64_t> places_of(const Dataset& part, const std::string& path) {
    const auto config = ordered_json::parse(part.text_attribute("config"), nullptr, false);
    const auto configs = config.is_object() ? config.value("policies", ordered_json())
                                            : ordered_json();
    std::vector<int64_t> places;
    for (const std::string& policy : part.texts("policy")) {
      const int64_t place = std::ranges::find(policies_, policy) - policies_.begin();
      if (place == std::ssize(policies_))
        bad_data({"a policy that is not in the sweep", path, policy});
      if (!from_[place].empty())
        bad_data({"a policy twice", path, policy, "parts without doubles",
                  "it is in " + from_[place] + ", too"});
      from_[place] = path;
      if (configs.is_array() && places.size() < configs.size())
        config_[place] = configs[places.size()];
      places.push_back(place);
    }
    return places;
  }

  const std::vector<std::string>& policies_;
  std::vector<std::string> from_;     ///< [policy]: the part that had it; empty: none yet
  std::vector<ordered_json> config_;  ///< [policy]
  Dataset whole_;                     ///< without its variables until all parts are there
  std::map<std::string, Variable> variables_;
};

namespace fs = std::filesystem;

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

Dataset join_results(const std::vector<std::string>& policies,
                     const std::vector<std::string>& paths) {
  Whole whole(policies);
  for (const std::string& path : paths) whole.add(read_known_results(path), path);
  return whole.finish();
}

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
