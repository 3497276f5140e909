#include <fmt/format.h>

#include "analysis/memory_model.hpp"
#include "run/study/study.hpp"
#include "sim/policy/policy_run.hpp"
#include "sim/stages/allocate/allocate.hpp"

namespace kvsim {
namespace {

using Form = double MemoryUse::*;

constexpr int64_t kTried = 24;  // budgets of a pass, which leaves a 23rd of the gap

constexpr std::pair<const char*, Form> kForms[] = {{"flattened", &MemoryUse::bytes_flattened},
                                                   {"padded", &MemoryUse::bytes_padded},
                                                   {"paged", &MemoryUse::bytes_paged},
                                                   {"in-place", &MemoryUse::bytes_in_place}};

Budget count_of(int64_t entries) {
  return {.label = std::to_string(entries), .is_ratio = false, .amount = Decimal(entries)};
}

/// Bytes that each record holds with each of its own budgets: [record][budget].
std::vector<std::vector<MemoryUse>> held_by(const std::vector<Record>& records,
                                            const TraceFiles& files, const TraceInfo& info,
                                            const StudyOptions& options, Backend& backend) {
  const std::vector<Budget>& own = records.front().own_budgets;
  PolicyRun policies(records, own, info, options.layers, options.seed, files);
  for (const int layer : options.layers) {
    if (!policies.needs_survey()) break;
    const LayerTrace read = files.layer(layer);
    LayerWork work(read, backend);
    policies.survey(work);
  }
  policies.finish_survey();
  Table<MemoryModel> models(std::ssize(records), std::ssize(own));
  for (const int layer : options.layers) {
    const LayerTrace read = files.layer(layer);
    LayerWork work(read, backend);
    const LayerKept kept = policies.select(work);
    for (size_t r = 0; r < records.size(); ++r)
      for (size_t b = 0; b < own.size(); ++b)
        add_to_memory(work, *kept[r][b], records[r].settings, options.element_bytes, {},
                      models(r, b));
  }
  std::vector<std::vector<MemoryUse>> used(records.size());
  for (size_t r = 0; r < records.size(); ++r)
    for (const MemoryModel& model : models.row(r)) used[r].push_back(model.use());
  return used;
}

/// Budgets in entries between the ends of gaps, these included.
std::vector<Budget> between(const std::vector<Range>& gaps) {
  std::set<int64_t> all;
  for (const Range& gap : gaps)
    for (int64_t k = 0; k < kTried; ++k)
      all.insert(std::max<int64_t>(1, gap.begin + gap.size() * k / (kTried - 1)));
  std::vector<Budget> budgets;
  for (const int64_t entries : all) budgets.push_back(count_of(entries));
  return budgets;
}

}  // namespace

const std::vector<std::string>& byte_forms() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (const auto& [name, of] : kForms) all.emplace_back(name);
    return all;
  }();
  return names;
}

std::vector<std::string> make_bytes_equal(const TraceReader& trace, Backend& backend,
                                          StudyOptions& options) {
  if (options.equal_bytes.empty()) return {};
  const Form of =
      std::ranges::find(kForms, options.equal_bytes, &std::pair<const char*, Form>::first)->second;
  const int64_t n = trace.info().prompt_len;
  take_doubles_out(options, n);
  StudyOptions planned = options;
  planned.layers = plan_study(trace, options).options.layers;
  TraceFiles files(trace);
  files.read_probes(observing_probes(planned.records, trace.info()));
  std::vector<Record> tried = options.records;
  // The largest budget known to fit, and the least known not to, for each record and target.
  std::vector<std::vector<Range>> gaps(tried.size(),
                                       std::vector<Range>(options.budgets.size(), {0, n}));
  for (int64_t step = n; step > 1; step = (step + kTried - 2) / (kTried - 1)) {
    std::vector<std::vector<int64_t>> counts;
    size_t most = 0;
    for (size_t r = 0; r < tried.size(); ++r) {
      tried[r].own_budgets = between(gaps[r]);
      most = std::max(most, tried[r].own_budgets.size());
    }
    for (Record& record : tried) record.own_budgets.resize(most, record.own_budgets.back());
    const auto used = held_by(tried, files, trace.info(), planned, backend);
    for (size_t r = 0; r < tried.size(); ++r)
      for (size_t t = 0; t < gaps[r].size(); ++t)
        for (size_t b = 0; b < most; ++b) {
          const int64_t entries = tried[r].own_budgets[b].entries(n);
          const double target = options.budgets[t].ratio(n) * used[r][b].bytes_full;
          if (used[r][b].*of <= target)
            gaps[r][t].begin = std::max(gaps[r][t].begin, entries);
          else if (entries > gaps[r][t].begin)
            gaps[r][t].end = std::min(gaps[r][t].end, entries);
        }
  }
  std::vector<std::string> too_large;
  for (size_t r = 0; r < tried.size(); ++r) {
    options.records[r].own_budgets.clear();
    for (size_t t = 0; t < gaps[r].size(); ++t) {
      const int64_t most = gaps[r][t].begin;
      const bool whole = chosen<Allocate>(options.records[r].settings).keeps_everything();
      options.records[r].own_budgets.push_back(
          count_of(most == 0 && whole ? n : std::max<int64_t>(1, most)));
      if (most == 0)
        too_large.push_back(fmt::format("{} holds more than {:.3g} of the full cache's bytes",
                                        options.records[r].canonical(),
                                        options.budgets[t].ratio(n)));
    }
  }
  return too_large;
}

}  // namespace kvsim
