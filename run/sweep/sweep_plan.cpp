#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "io/hdf5.hpp"
#include "io/side_files.hpp"
#include "kvsim_version.hpp"
#include "run/sweep/sweep.hpp"
#include "sim/policy/record.hpp"
#include "sim/replay/compression.hpp"
#include "sim/stages/indicator/indicator.hpp"

namespace kvsim {
namespace {

/// Units of a group are finished together, and shards are made of groups: they stay small.
constexpr double kLongestGroup = 30;         // seconds on one thread
constexpr int64_t kLargestGroup = 8;         // records
constexpr int64_t kMostResults = 256 << 20;  // bytes of results of one group
constexpr int64_t kProgram = 48 << 20;       // bytes
constexpr int64_t kPerThread = 12 << 20;     // bytes
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

bool quantizes(const Record& record) { return quantizer(record.settings).changes_entries(); }

/// Floating-point operations of products of `rows` queries with all entries, `dim` numbers each.
double products(const TraceInfo& info, double rows, int64_t dim) {
  return 2 * static_cast<double>(info.num_query_heads * info.prompt_len * dim) * rows;
}

int64_t tensor_bytes(const TraceReader& reader) {
  return reader.file_size() / static_cast<int64_t>(std::max<size_t>(1, reader.headers().size()));
}

/// On one thread, of one record at all budgets, beyond what its group shares: guessed from shapes
/// alone, so that all machines agree on the shares; good to a factor of about two.
double seconds_of(const TraceReader& reader, const StudyOptions& options, const Record& record) {
  const TraceInfo& info = reader.info();
  const Settings& settings = record.settings;
  const int64_t value_dim = reader.headers().front().value_dim;
  const auto steps = static_cast<double>(info.steps()),
             budgets = static_cast<double>(options.budgets.size());
  double kept = 0, largest = 0;
  for (const Budget& budget : options.budgets) {
    kept += budget.ratio(info.prompt_len);
    largest = std::max(largest, budget.ratio(info.prompt_len));
  }
  constexpr double kObserving = 64;  // queries that observe, where not all do
  const bool all = chosen<Queries>(settings).observes_all();
  double flops = 2 * products(info, all ? static_cast<double>(info.prompt_len) : kObserving,
                              info.head_dim);
  flops += chosen<Indicator>(settings).use().cost * products(info, kObserving, value_dim);
  const double projected = *options.wo_steps > 0 ? std::min<double>(*options.wo_steps, steps)
                                                 : steps;
  flops += 2 * projected * budgets *
           static_cast<double>(info.num_query_heads * value_dim * info.hidden_size);
  flops *= kUnshared;
  // Nested budgets cost as much as the largest; quantising, merging and decoding take each by
  // itself, slot by slot.
  double passes = kUnshared * (largest + 0.2 * kept);
  if (quantizes(record)) passes = kQuantizing * budgets;
  if (!chosen<Schedule>(settings).once()) passes = kDecoding * budgets;
  if (merges(settings)) passes = kMerging * budgets;
  flops += products(info, steps, value_dim) * passes;
  return static_cast<double>(options.layers.size()) * (flops / kRate + kPerCell * budgets);
}

/// Of the results of one record.
int64_t bytes_of(const TraceInfo& info, const StudyOptions& options) {
  const int64_t heads = info.num_query_heads;
  const int64_t series = 4 + std::ssize(options.metrics) + (options.per_head ? 3 * heads : 0);
  const int64_t masks = options.save_keep ? heads * info.prompt_len : 0;
  return std::ssize(options.budgets) * std::ssize(options.layers) *
         (8 * series * info.steps() + masks);
}

/// What the numbers of some records of a job depend on. Records that share a replay share partial
/// sums where their kept sets are nested, so that the last bits depend on the company.
std::string digest_of(const SweepJob& job, const std::vector<size_t>& records) {
  const StudyOptions& o = job.options;
  nlohmann::ordered_json text = {{"version", KVSIM_VERSION " " KVSIM_GIT_COMMIT},
                                 {"trace", job.reader->digest()},
                                 {"layers", o.layers},
                                 {"seed", o.seed},
                                 {"measured", options_text(o)}};
  for (const Budget& budget : o.budgets) text["budgets"].push_back(budget.label);
  for (const size_t r : records) {
    const Settings& settings = o.records[r].settings;
    text["records"].push_back(
        {{"record", o.records[r].canonical()}, {"parameters", settings.values()}});
    for (const std::string& key : file_keys(settings))
      text["records"].back()["files"].push_back(
          file_digest(scores_file(settings.text(key), job.reader->info().path)));
  }
  return text_digest(text.dump());
}

/// A trace with a seed; what it cannot serve is refused here.
SweepJob job_of(const SweepConfig& config, const TraceReader& reader, uint64_t seed,
                const std::function<void(const std::string&)>& message) {
  const TraceInfo& info = reader.info();
  SweepJob job{.reader = &reader,
               .name = std::filesystem::path(info.path).stem().string(),
               .options = config.options};
  if (config.seeds.size() > 1) job.name += fmt::format("-seed{}", seed);
  StudyOptions& options = job.options;
  take_doubles_out(options, info.prompt_len);
  options.seed = seed;
  const std::set<int> layers(config.layers.begin(), config.layers.end());
  options.layers = layers.empty() ? info.layers : std::vector(layers.begin(), layers.end());
  for (const int layer : options.layers)
    if (!contains(info.layers, layer))
      bad_data({info.path + ": the trace does not have the layer asked for",
                config.places.at(std::to_string(layer)), fmt::format("layers with {}", layer)});
  // Variables must not depend on which records share a group: what one record makes the run measure
  // is measured for all.
  options.metrics.merge(
      variables_brought({info, options, span_tokens(info, options.span_complements)}));
  for (const Record& record : options.records) {
    StudyOptions alone = options;
    alone.records = {record};
    const StudyPlan plan = plan_study(reader, std::move(alone),
                                      job.seconds.empty() ? message : nullptr);
    options.wo_steps = plan.options.wo_steps;
    job.seconds.push_back(seconds_of(reader, options, record));
  }
  const double flops = products(info, static_cast<double>(info.steps()),
                                info.head_dim + reader.headers().front().value_dim);
  const double shared = kFullCache * static_cast<double>(options.layers.size()) *
                        (flops / kRate + static_cast<double>(tensor_bytes(reader)) / kReading);
  const int64_t bytes = std::max<int64_t>(1, bytes_of(info, options));
  const auto largest = std::clamp(kMostResults / bytes, int64_t{1}, kLargestGroup);
  // Quantising records keep to themselves: they bring a variable along that others do not have.
  auto order = ascending<size_t>(std::ssize(options.records));
  const auto quantizing = [&](size_t u) { return quantizes(options.records[u]); };
  std::ranges::stable_sort(order, {}, quantizing);
  for (const size_t u : order) {
    if (job.groups.empty() || quantizing(job.groups.back().units.front()) != quantizing(u) ||
        std::ssize(job.groups.back().units) >= largest ||
        job.groups.back().seconds - shared + job.seconds[u] > kLongestGroup)
      job.groups.push_back({.seconds = shared});
    job.groups.back().units.push_back(u);
    job.groups.back().seconds += job.seconds[u];
  }
  for (SweepGroup& group : job.groups)
    group.memory = kProgram + kPerThread * threads() +
                   2 * std::max(tensor_bytes(reader) + std::ssize(group.units) * bytes,
                                std::ssize(order) * bytes);
  return job;
}

/// Leaves the groups of a shard, and the jobs that have any: the dearest groups go first, each to
/// the shard with the least to do.
void take_share(std::vector<SweepJob>& jobs, int64_t shard, int64_t shards) {
  std::vector<SweepGroup*> order;
  for (SweepJob& job : jobs)
    for (SweepGroup& group : job.groups) order.push_back(&group);
  std::ranges::stable_sort(order, std::greater<>(), &SweepGroup::seconds);
  std::vector<double> load(shards, 0.0);
  for (SweepGroup* group : order) {
    const auto least = std::ranges::min_element(load);
    *least += group->seconds;
    if (least - load.begin() != shard - 1) group->units.clear();
  }
  for (SweepJob& job : jobs)
    std::erase_if(job.groups, [](const SweepGroup& group) { return group.units.empty(); });
  std::erase_if(jobs, [](const SweepJob& job) { return job.groups.empty(); });
}

}  // namespace

SweepPlan::SweepPlan(const SweepConfig& config,
                     const std::function<void(const std::string&)>& message,
                     const std::string& folder, int64_t shard, int64_t shards)
    : units_(std::filesystem::path(folder) / "units") {
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
    const TraceReader& reader = *readers_.back();
    for (const std::string& warning : reader.warnings())
      if (message) message(warning);
    for (const uint64_t seed : config.seeds) {
      SweepJob job = job_of(config, reader, seed, seed == config.seeds.front() ? message : nullptr);
      const auto other = std::ranges::find(jobs_, job.name, &SweepJob::name);
      if (other != jobs_.end())
        usage_error({other->reader == &reader ? "a seed twice"
                                              : "two traces of one name would share a file",
                     config.path, job.name + ".nc"});
      jobs_.push_back(std::move(job));
    }
  }
  take_share(jobs_, shard, shards);
  const std::string part = shards == 1 ? "" : fmt::format(".part-{}-of-{}", shard, shards);
  for (SweepJob& job : jobs_) {
    nlohmann::ordered_json sweep = {
        {"id", digest_of(job, ascending<size_t>(std::ssize(job.seconds)))},
        {"shard", fmt::format("{}/{}", shard, shards)}};
    for (const Record& record : job.options.records)
      sweep["policies"].push_back(record.canonical());
    job.sweep = sweep.dump();
    job.path = (std::filesystem::path(folder) / (job.name + part + ".nc")).string();
    try {
      const h5::InputFile file(job.path, kResultsFile);
      job.there = file.text_attribute("/", "sweep") == job.sweep;
    } catch (const Error&) {  // none, or none that could be read
    }
    for (SweepGroup& group : job.groups) {
      std::error_code fault;
      group.path = (units_ / (digest_of(job, group.units) + ".nc")).string();
      group.there = job.there || std::filesystem::is_regular_file(group.path, fault);
    }
  }
}

}  // namespace kvsim
