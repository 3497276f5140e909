#include <fmt/format.h>

#include "sim/policy/policy_run.hpp"
#include "sim/policy/prepared_record.hpp"
#include "sim/stages/indicator/indicator.hpp"
#include "sim/stages/merge/merge.hpp"

namespace kvsim {
namespace {

/// "0..31, 40" of ascending positions.
std::string as_ranges(const std::vector<int64_t>& positions) {
  std::string text;
  size_t pieces = 0;
  for (size_t from = 0; from < positions.size();) {
    size_t to = from;
    while (to + 1 < positions.size() && positions[to + 1] == positions[to] + 1) ++to;
    if (++pieces > 4) return text + ", ...";
    text += fmt::format("{}{}", text.empty() ? "" : ", ", positions[from]);
    if (to > from) text += fmt::format("..{}", positions[to]);
    from = to + 1;
  }
  return text.empty() ? "none" : text;
}

bool asks_probe(const Settings& settings) {
  return chosen<Queries>(settings).of_probe() || chosen<Join>(settings).joins();
}

std::string fault_of(const Settings& settings, const ProbeInfo& probe) {
  const auto* const asking = chosen<Indicator>(settings).as<AsksProbe>();
  return asking ? asking->probe_fault(settings, probe) : "";
}

/// Lack of a record's probe in the trace, in words; empty: nothing.
std::string probe_fault(const Settings& settings, const TraceInfo& info) {
  const int number = info.find_probe(probe_name(settings));
  if (number < 0) return "it is not there";
  return fault_of(settings, info.probes[number]);
}

/// The options of a capture after which the trace serves all these records.
std::string probe_options(const std::vector<Record>& records, const TraceInfo& info) {
  std::set<std::string> specs;
  for (const Record& record : records)
    if (asks_probe(record.settings) && !probe_fault(record.settings, info).empty())
      specs.insert(probe_spec(record.settings));
  std::string options;
  for (const std::string& spec : specs)
    if (!specs.contains(spec + ":gradient")) options += " --probe " + spec;
  return options;
}

/// One record, asked of one trace.
class RecordCheck {
 public:
  RecordCheck(const Preparation& preparation, const PreparedRecord& record,
              const std::vector<Budget>& budgets, const TraceInfo& info, const SideFiles& files,
              const std::string& probe_options)
      : preparation_(preparation), record_(record), budgets_(budgets), info_(info), files_(files),
        probe_options_(probe_options) {}

  void run() const {
    whitelist();
    queries();
    probes();
    rotations();
    stream();
    side_files();
    token_texts();
  }

 private:
  void whitelist() const {
    if (record_.stage<Allocate>().ignores_budget()) return;
    const int64_t size = std::ranges::count(listed_entries(record_.whitelist, info_.prompt_len), 1);
    for (size_t b = 0; b < budgets_.size(); ++b)
      if (size > record_.budgets[b].entries)
        usage_error(
            {"the whitelist does not fit the budget",
             fmt::format("policy {} at budget {}", record_.title, budgets_[b].label),
             fmt::format("{} whitelisted entries, {} places", size, record_.budgets[b].entries),
             fmt::format("a budget of at least {}", size)});
  }
  void queries() const {
    const auto& stored = info_.query_position;
    if (info_.steps() == 0)
      bad_data({"the trace holds no later step", info_.path,
                "no query at positions >= " + std::to_string(info_.prompt_len), "at least one"});
    std::set<int64_t> needed;
    const auto observed_in = [&](const std::vector<Segment>& segments) {
      for (const Segment& segment : segments)
        needed.insert(segment.positions.begin(), segment.positions.end());
    };
    const bool decodes = record_.stage<Schedule>().decodes();
    for (const PreparedBudget& b : record_.budgets) {
      if (record_.layers.empty()) continue;
      if (!b.keeps_all && !record_.stage<Queries>().looks_ahead())
        observed_in(preparation_.plans()[b.plan].segments);
      if (b.keeps_all && decodes && !record_.stage<Allocate>().keeps_everything())
        observed_in(preparation_.segments(record_, b.window));  // entries leave later
      if (!b.keeps_all || decodes) need_for_merging(b.entries, needed);
    }

    if (record_.stage<Schedule>().in_chunks()) observed_after_chunks(needed);
    for (int64_t t = info_.prompt_len; decodes && t < info_.total_len; ++t) needed.insert(t);
    if (std::ranges::includes(stored, needed)) return;
    const int64_t first = *needed.begin();
    const std::string queries = first == 0 || first >= info_.prompt_len
                                    ? std::string("all")
                                    : fmt::format("window:{}", info_.prompt_len - first);
    // A capture stores queries without a gap, unless tokens see what comes after them.
    const bool gap = !stored.empty() && std::ranges::any_of(needed, [&](int64_t position) {
      return position > stored.front() && !std::ranges::binary_search(stored, position);
    });
    bad_data({"policy " + record_.title + " needs queries the trace does not hold", info_.path,
              "positions " + as_ranges(stored),
              "positions " + as_ranges({needed.begin(), needed.end()}),
              gap ? "no capture stores those of tokens that see one another, as an image's do in "
                    "some models: take a policy that looks at the newest queries"
                  : "capture the prompt again with --queries " + queries});
  }
  /// Queries that observe where a chunk of the prompt ends.
  void observed_after_chunks(std::set<int64_t>& needed) const {
    const auto& queries = record_.stage<Queries>();
    const bool alone = compresses_chunks_alone(record_.settings);
    for (size_t b = 0; b < record_.budgets.size(); ++b) {
      if (record_.budgets[b].keeps_all) continue;
      for (const PromptChunk& chunk :
           prompt_chunks(record_.settings, record_.asked[b], info_.prompt_len)) {
        TraceInfo seen = info_;
        seen.prompt_len = chunk.range.end;
        Segment segment;
        segment.range = {alone ? chunk.range.begin : 0, chunk.range.end};
        if (segment.range.size() <= chunk.entries) continue;
        const int64_t window = queries.window(record_.settings, chunk.entries,
                                              segment.range.size());
        queries.observe(record_.settings, window, seen, segment);
        needed.insert(segment.positions.begin(), segment.positions.end());
      }
    }
  }
  /// Queries that the chosen merge reads: those of its score estimates, or the newest.
  void need_for_merging(int64_t budget, std::set<int64_t>& needed) const {
    const auto& merge = record_.stage<Merge>();
    int64_t rows = merge.uses_attention() ? 1 : 0;
    if (merge.estimates() != EstimateLines::none)
      rows = record_.stage<ScoreEstimate>().rows(record_.settings, budget);
    const int64_t n = info_.prompt_len;
    for (int64_t j = std::max<int64_t>(0, n - rows); j < n; ++j) needed.insert(j);
  }
  void probes() const {
    if (!asks_probe(record_.settings)) return;
    const std::string fault = probe_fault(record_.settings, info_);
    if (fault.empty()) return;
    const std::string& name = probe_name(record_.settings);
    const std::string hint = "capture the prompt again with" + probe_options_;
    std::string known;
    for (const ProbeInfo& probe : info_.probes) known += (known.empty() ? "" : ", ") + probe.name;
    if (info_.find_probe(name) < 0)
      bad_data({"policy " + record_.title + " needs a probe the trace does not hold", info_.path,
                known.empty() ? "no probes" : "probes " + known,
                "a probe " + probe_spec(record_.settings), hint});
    bad_data({"policy " + record_.title + " needs more of the probe " + name, info_.path, fault,
              "a trace that stores it", hint});
  }
  void rotations() const {
    const bool turns = moves_positions(record_.settings) ||
                       record_.stage<Indicator>().use().moves_queries ||
                       record_.stage<Quantize>().turns_keys(record_.settings);
    if (!turns) return;
    for (const int layer : record_.layers) {
      if (info_.rotation(layer).pairs() > 0) continue;
      bad_data({"policy " + record_.title + " moves positions", info_.path,
                info_.rope_missing.empty() ? fmt::format("no rope/inv_freq for layer {}", layer)
                                           : info_.rope_missing,
                "a trace with rope/inv_freq"});
    }
  }
  void stream() const {
    if (!record_.stage<Allocate>().needs_stream(record_.settings) || info_.has_residual_norm)
      return;
    bad_data({"policy " + record_.title + " weighs layers by the residual stream", info_.path,
              "no residual_norm", "a trace with residual_norm, as kvsim capture writes it"});
  }
  void side_files() const {
    record_.stage<Allocate>().check_files(record_.settings, files_, info_.num_layers,
                                          record_.owners);
    const auto* const indicator = record_.stage<Indicator>().as<ReadsFiles>();
    for (size_t l = 0; indicator && l < record_.layers.size(); ++l)
      indicator->check_files(record_.settings, files_, record_.layers[l], record_.owners,
                             info_.prompt_len);
  }
  void token_texts() const {
    const bool classes = record_.stage<Allocate>().uses_token_classes() ||
                         record_.stage<Stage1>().uses_token_classes();
    if (classes && files_.token_text().empty())
      bad_data({"policy " + record_.title + " looks at what the tokens are", info_.path,
                "no tokens/text", "a trace with tokens/text"});
  }

  const Preparation& preparation_;
  const PreparedRecord& record_;
  const std::vector<Budget>& budgets_;
  const TraceInfo& info_;
  const SideFiles& files_;
  const std::string& probe_options_;  ///< of all records of the run
};

}  // namespace

std::string probe_spec(const Settings& settings) {
  const std::string& name = probe_name(settings);
  if (name == "draft") return "draft:K";
  if (name.starts_with("question")) return "file:QUESTIONS";
  ProbeInfo without_gradient;
  without_gradient.parts = {{.tokens = {0, 1}, .reads = {0, 1}}};
  without_gradient.has_input_norm = without_gradient.has_residual_norm = true;
  const bool gradient = !fault_of(settings, without_gradient).empty();
  return name + (gradient ? ":gradient" : "");
}

void check_records(const std::vector<Record>& records, const std::vector<Budget>& budgets,
                   const TraceInfo& info, const std::vector<int>& layers, const SideFiles& files,
                   const std::string& asked_by) {
  const std::string probes = probe_options(records, info);
  const auto check = [&](const Record& record) {
    Preparation preparation(info, layers, budgets);
    PreparedRecord prepared = preparation.prepare(record);
    prepared.title += asked_by;
    RecordCheck(preparation, prepared, budgets, info, files, probes).run();
  };
  for (const Record& record : records) check(record);
  for (const Record& record : records)
    if (const auto plain = unconstrained(record)) check(*plain);
}

std::set<int> observing_probes(const std::vector<Record>& records, const TraceInfo& info) {
  std::set<int> numbers;
  for (const Record& record : records)
    if (asks_probe(record.settings))
      if (const int number = info.find_probe(probe_name(record.settings)); number >= 0)
        numbers.insert(number);
  return numbers;
}

}  // namespace kvsim
