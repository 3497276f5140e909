#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "analysis/dataset.hpp"
#include "io/side_files.hpp"
#include "kvsim_version.hpp"
#include "run/study/study.hpp"
#include "run/sweep/sweep.hpp"
#include "run/trace/trace_files.hpp"
#include "sim/policy/record.hpp"
#include "sim/replay/compression.hpp"
#include "sim/stages/indicator/indicator.hpp"

namespace kvsim {
namespace {

/// Units of a group are finished together, and shards are made of groups: they stay small.
constexpr double kLongestGroup = 30;         // seconds on one thread
constexpr size_t kLargestGroup = 8;          // records
constexpr int64_t kMostResults = 256 << 20;  // bytes of results of one group
constexpr double kRate = 100e9;              // flop/s of one thread
constexpr double kReading = 2e9;             // bytes/s
constexpr double kPerCell = 3e-4;            // seconds per budget and layer: the small things
/// Measured on the sample and on a trace of 2304 entries and 30 layers, in products at the rate
/// above.
constexpr double kMerging = 40;
constexpr double kQuantizing = 14;
constexpr double kDecoding = 15;
/// Rest of a unit's own work: units of a group share scores and kept sets that are equal.
constexpr double kUnshared = 0.4;
constexpr double kFullCache = 2;  // of the group, against its products and reading
constexpr int kFormat = 2;        // of unit files; part of every key

bool quantizes(const Record& record) { return quantizer(record.settings).changes_entries(); }

/// Shapes of a job as real numbers.
struct Shapes {
  double heads, steps, entries, key_dim, value_dim, hidden, layers, budgets, kept, largest;

  Shapes(const TraceReader& reader, const StudyOptions& options) {
    const TraceInfo& info = reader.info();
    heads = info.num_query_heads;
    steps = static_cast<double>(info.steps());
    entries = static_cast<double>(info.prompt_len);
    key_dim = static_cast<double>(info.head_dim);
    value_dim = static_cast<double>(reader.headers().front().value_dim);
    hidden = static_cast<double>(info.hidden_size);
    layers = static_cast<double>(options.layers.size());
    budgets = static_cast<double>(options.budgets.size());
    kept = largest = 0;
    for (const Budget& budget : options.budgets) {
      kept += budget.ratio(info.prompt_len);
      largest = std::max(largest, budget.ratio(info.prompt_len));
    }
  }
  double products(double rows, double dim) const { return 2 * heads * rows * entries * dim; }
};

double seconds_of(double flops) { return flops / kRate; }

int64_t tensor_bytes(const TraceReader& reader) {
  return reader.file_size() / static_cast<int64_t>(std::max<size_t>(1, reader.headers().size()));
}

SweepUnit unit_of(const Shapes& s, const StudyOptions& options, const Record& record) {
  const Settings& settings = record.settings;
  constexpr double kObserving = 64;  // queries that observe, where not all do
  const bool all = chosen<Queries>(settings).observes_all();
  double flops = 2 * s.products(all ? s.entries : kObserving, s.key_dim);
  flops += chosen<Indicator>(settings).use().cost * s.products(kObserving, s.value_dim);
  const double projected = options.wo_steps.value_or(0) > 0
                               ? std::min<double>(*options.wo_steps, s.steps)
                               : s.steps;
  flops += 2 * projected * s.heads * s.value_dim * s.hidden * s.budgets;
  flops *= kUnshared;
  // Nested budgets cost as much as the largest; quantising, merging and decoding take each by
  // itself, slot by slot.
  double passes = kUnshared * (s.largest + 0.2 * s.kept);
  if (quantizes(record)) passes = kQuantizing * s.budgets;
  if (!chosen<Schedule>(settings).once()) passes = kDecoding * s.budgets;
  if (merges(settings)) passes = kMerging * s.budgets;
  flops += s.products(s.steps, s.value_dim) * passes;
  const double series = 4 + static_cast<double>(options.metrics.size()) +
                        (options.per_head ? 3 * s.heads : 0);
  const double masks = options.save_keep ? s.heads * s.entries : 0;
  return {"", seconds_of(flops * s.layers) + kPerCell * s.budgets * s.layers,
          static_cast<int64_t>(s.budgets * s.layers * (8 * series * s.steps + masks))};
}

/// Settings that the numbers of every unit of a job depend on.
nlohmann::ordered_json job_description(const SweepJob& job) {
  const StudyOptions& o = job.options;
  nlohmann::ordered_json text;
  text["format"] = kFormat;
  text["version"] = std::string(KVSIM_VERSION) + " " + KVSIM_GIT_COMMIT;
  text["trace"] = job.reader->digest();
  text["layers"] = o.layers;
  text["seed"] = o.seed;
  for (const Budget& budget : o.budgets) text["budgets"].push_back(budget.label);
  text["measured"] = options_text(o);
  return text;
}

/// A record with every parameter, and what its side files hold.
nlohmann::ordered_json record_description(const Record& record, const std::string& trace) {
  nlohmann::ordered_json text;
  text["record"] = record.canonical();
  text["parameters"] = record.settings.values();
  for (const std::string& key : file_keys(record.settings))
    text["files"].push_back(file_digest(scores_file(record.settings.text(key), trace)));
  return text;
}

/// Variables must not depend on which records share a group: what one record makes the run measure
/// is measured for all.
void ask_for_all(const TraceInfo& info, StudyOptions& options) {
  const std::set<std::string> brought = variables_brought(
      {info, options, span_tokens(info, options.span_complements)});
  options.metrics.insert(brought.begin(), brought.end());
}

/// The error of a trace with the line of the sweep file that asked for it.
[[noreturn]] void rethrow_at(const std::string& place, const Error& error) {
  Error::Parts parts = error.parts();
  if (!parts.where.empty()) parts.what = parts.where + ": " + parts.what;
  parts.where = place;
  throw Error(error.fault(), std::move(parts));
}

void check_layers(const SweepConfig& config, const StudyOptions& options, const TraceInfo& info) {
  for (const int layer : options.layers) {
    if (contains(info.layers, layer)) continue;
    bad_data({info.path + ": the trace does not have the layer asked for",
              config.places.at(std::to_string(layer)), fmt::format("layers with {}", layer)});
  }
}

/// Records that share a replay share partial sums where their kept sets are nested, so that the
/// last bits of a unit depend on its group: the key names them all.
void name_units(SweepJob& job, const SweepGroup& group) {
  nlohmann::ordered_json text = job_description(job);
  for (const size_t unit : group.units)
    text["group"].push_back(record_description(job.options.records[unit], job.reader->info().path));
  for (const size_t unit : group.units) {
    text["policy"] = job.options.records[unit].canonical();
    job.units[unit].key = text_digest(text.dump());
  }
}

}  // namespace

SweepPlan::SweepPlan(const SweepConfig& config, const Message& message) {
  if (config.traces.empty())
    usage_error({"no traces", config.path, "", "traces = [\"FILE\"], or --trace FILE"});
  for (const std::string& path : config.traces) {
    try {
      readers_.push_back(std::make_unique<TraceReader>(path));
    } catch (const Error& error) {
      const auto place = config.places.find(path);
      if (place == config.places.end()) throw;  // named by --trace
      rethrow_at(place->second, error);
    }
    for (const std::string& warning : readers_.back()->warnings())
      if (message) message(warning);
    for (const uint64_t seed : config.seeds)
      add_job(config, *readers_.back(), seed, seed == config.seeds.front() ? message : nullptr);
  }
}

void SweepPlan::add_job(const SweepConfig& config, const TraceReader& reader, uint64_t seed,
                        const Message& message) {
  SweepJob job;
  job.reader = &reader;
  job.name = std::filesystem::path(reader.info().path).stem().string();
  if (config.seeds.size() > 1) job.name += fmt::format("-seed{}", seed);
  for (const SweepJob& other : jobs_) {
    if (other.name != job.name) continue;
    usage_error(
        {other.reader == &reader ? "a seed twice" : "two traces of one name would share a file",
         config.path, job.name + ".nc"});
  }
  job.options = config.options;
  StudyOptions& options = job.options;
  take_doubles_out(options, reader.info().prompt_len);
  options.seed = seed;
  options.layers = config.layers.empty() ? reader.info().layers : config.layers;
  std::ranges::sort(options.layers);
  options.layers.erase(std::ranges::unique(options.layers).begin(), options.layers.end());
  check_layers(config, options, reader.info());
  ask_for_all(reader.info(), options);
  const Shapes shapes(reader, options);
  if (!options.wo_steps)
    options.wo_steps = default_wo_steps(reader.info(), reader.headers().front().value_dim);
  nlohmann::ordered_json whole = job_description(job);
  for (const Record& record : options.records) {
    StudyOptions alone = options;
    alone.records = {record};
    plan_study(reader, std::move(alone), job.units.empty() ? message : nullptr);
    whole["policies"].push_back(record_description(record, reader.info().path));
    job.units.push_back(unit_of(shapes, options, record));
  }
  job.id = text_digest(whole.dump());
  const double flops = shapes.products(shapes.steps, shapes.key_dim + shapes.value_dim);
  job.shared_seconds = kFullCache * shapes.layers *
                       (seconds_of(flops) + static_cast<double>(tensor_bytes(reader)) / kReading);
  jobs_.push_back(std::move(job));
  // Quantising records keep to themselves: they bring a variable along that others do not have.
  for (const bool quantizing : {false, true}) add_groups(jobs_.size() - 1, quantizing);
  for (const SweepGroup& group : groups_)
    if (group.job == jobs_.size() - 1) name_units(jobs_.back(), group);
}

void SweepPlan::add_groups(size_t j, bool quantizing) {
  const SweepJob& job = jobs_[j];
  const SweepGroup none{j, {}, job.shared_seconds};
  SweepGroup group = none;
  int64_t bytes = 0;
  for (size_t u = 0; u < job.units.size(); ++u) {
    const SweepUnit& unit = job.units[u];
    if (quantizes(job.options.records[u]) != quantizing) continue;
    const double own = group.seconds - job.shared_seconds + unit.seconds;
    if (!group.units.empty() && (group.units.size() >= kLargestGroup || own > kLongestGroup ||
                                 bytes + unit.bytes > kMostResults)) {
      groups_.push_back(std::exchange(group, none));
      bytes = 0;
    }
    group.units.push_back(u);
    group.seconds += unit.seconds;
    bytes += unit.bytes;
  }
  if (!group.units.empty()) groups_.push_back(std::move(group));
}

/// The dearest groups first, each to the shard with the least to do.
std::vector<SweepGroup> SweepPlan::groups(int64_t shard, int64_t shards) const {
  auto order = ascending<size_t>(std::ssize(groups_));
  std::ranges::stable_sort(order, std::greater<>(), [&](size_t g) { return groups_[g].seconds; });
  std::vector<double> load(shards, 0.0);
  std::set<size_t> mine;
  for (const size_t g : order) {
    const auto least = std::ranges::min_element(load);
    *least += groups_[g].seconds;
    if (least - load.begin() == shard - 1) mine.insert(g);
  }
  std::vector<SweepGroup> chosen;
  for (const size_t g : mine) chosen.push_back(groups_[g]);
  return chosen;
}

int64_t SweepPlan::memory(const SweepGroup& group) const {
  constexpr int64_t kProgram = 48 << 20;
  constexpr int64_t kPerThread = 12 << 20;
  const SweepJob& job = jobs_[group.job];
  int64_t results = 0;
  int64_t all = 0;
  for (const size_t unit : group.units) results += job.units[unit].bytes;
  for (const SweepUnit& unit : job.units) all += unit.bytes;
  return kProgram + kPerThread * threads() +
         std::max(2 * tensor_bytes(*job.reader) + 2 * results, 2 * all);
}

}  // namespace kvsim
