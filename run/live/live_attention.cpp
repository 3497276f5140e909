#include "run/live/live_attention.hpp"

#include "run/study/study.hpp"
#include "sim/policy/policy_run.hpp"
#include "sim/policy/prepared_record.hpp"
#include "sim/replay/layer_replay.hpp"
#include "sim/replay/slots.hpp"

namespace kvsim {
namespace {

/// First position whose query sees a compressed cache.
int64_t first_compressed(const std::vector<Record>& records, const std::vector<Budget>& budgets,
                         const TraceInfo& info) {
  int64_t first = info.prompt_len;
  for (const Record& record : records) {
    if (!chosen<Schedule>(record.settings).in_chunks()) continue;
    for (const Budget& budget : record.budgets(budgets))
      first = std::min(first,
                       prompt_chunks(record.settings, budget, info.prompt_len).front().range.end);
  }
  return first;
}

/// Queries of the prompt as far as they are stored, or all where chunks of it see a compressed
/// cache; and every later one.
TraceInfo with_all_later_queries(TraceInfo info, int64_t first) {
  const int64_t from = first < info.prompt_len ? 0 : info.prompt_len;
  std::erase_if(info.query_position, [&](int64_t p) { return p >= from; });
  for (int64_t p = from; p < info.total_len; ++p) info.query_position.push_back(p);
  return info;
}

/// Puts z^ = z + (z^ - z) together from the blocks of a replay.
class ReplayedOutputs {
 public:
  explicit ReplayedOutputs(const LayerWork& work)
      : heads_(work.query_heads()), steps_(work.info().steps()), width_(work.value_dim()),
        z_(heads_ * steps_ * width_), change_(z_.size()) {}

  void add(const StepBlock& block) {
    if (block.full != nullptr) copy(block, block.full->z.data(), z_);
    for (const OutcomeBlock& view : block.outcomes)
      if (view.delta != nullptr) copy(block, view.delta, change_);
  }
  std::vector<float> sum() && {
    for (size_t x = 0; x < z_.size(); ++x) z_[x] += change_[x];
    return std::move(z_);
  }

 private:
  /// `values` [Hq][steps of the block][dv], every step of it.
  void copy(const StepBlock& block, const float* values, std::vector<float>& whole) const {
    for (int64_t h = 0; h < heads_; ++h)
      std::copy_n(values + h * block.steps * width_, block.steps * width_,
                  whole.begin() + (h * steps_ + block.first_step) * width_);
  }

  int64_t heads_, steps_, width_;
  std::vector<float> z_, change_;  // [Hq][T][dv]
};

}  // namespace

struct LiveAttention::Session {
  int last_layer = -1;
  std::unique_ptr<PolicyRun> first;            ///< the record and budget alone, never surveyed
  std::unique_ptr<PeriodicPolicies> periodic;  ///< its later compressions
};

LiveAttention::LiveAttention(const TraceReader& reader, std::vector<Record> records,
                             std::vector<Budget> budgets, std::vector<int> layers, uint64_t seed,
                             Norm norm)
    : reader_(reader), first_(first_compressed(records, budgets, reader.info())),
      info_(with_all_later_queries(reader.info(), first_)), layers_(std::move(layers)), seed_(seed),
      norm_(norm), files_(reader), backend_(make_cpu_backend()) {
  for (const int layer : layers_) {
    const int64_t window = reader.header(layer).sliding_window;
    if (window == 0 || window >= info_.total_len) continue;
    bad_data({"the layer is not compressed, since its sliding window is shorter than the "
              "trace",
              info_.path + ", layer " + std::to_string(layer),
              "a window of " + std::to_string(window), "layers that see the whole trace"});
  }
  check_served(reader, info_, records, budgets, layers_);
  files_.read_probes(observing_probes(records, reader.info()));
  policies_ = std::make_unique<PolicyRun>(std::move(records), std::move(budgets), reader.info(),
                                          layers_, seed_, files_);
  refuse_later_surveys();
}

LiveAttention::~LiveAttention() = default;

/// A periodic policy is compressed layer by layer while the model runs.
void LiveAttention::refuse_later_surveys() const {
  PeriodicPolicies periodic(*policies_, info_, layers_, seed_, files_);
  for (const PeriodicPolicies::Planned& planned : periodic.planned()) {
    const bool across = std::ranges::any_of(planned.epochs, [](const Epoch& epoch) {
      return epoch.policies && epoch.policies->needs_survey();
    });
    if (!across) continue;
    usage_error({"each of its compressions ranks across layers, but a model that runs has "
                 "not come to the later ones",
                 "policy " + policies_->records()[planned.record].canonical(), "",
                 "schedule=prefill, or budgets that a layer has by itself"});
  }
}

void LiveAttention::choose(const std::function<void(int64_t, int64_t)>& progress) {
  const bool twice = policies_->needs_survey();
  const int64_t all = std::ssize(layers_) * (twice ? 2 : 1);
  int64_t done = 0;
  for (const int layer : layers_) {
    if (!twice) break;
    progress(done++, all);
    const LayerTrace trace = files_.layer(layer);
    LayerWork work(trace, *backend_, norm_);
    policies_->survey(work);
  }
  if (twice) policies_->finish_survey();
  for (const int layer : layers_) {
    progress(done++, all);
    LayerTrace trace = files_.layer(layer);
    LayerWork work(trace, *backend_, norm_);
    kept_[layer] = policies_->select(work);
    trace.q = trace.k = trace.v = Tensor();
    trace.probes.clear();
    trace.info = &info_;
    trace_[layer] = std::move(trace);
  }
  progress(done, all);
}

LiveAttention::Session& LiveAttention::session(const Call& call) {
  std::unique_ptr<Session>& session = sessions_[{call.record, call.budget}];
  if (!session || call.layer <= session->last_layer) {
    session = std::make_unique<Session>();
    session->first = std::make_unique<PolicyRun>(std::vector<Record>{records()[call.record]},
                                                 std::vector<Budget>{budgets()[call.budget]}, info_,
                                                 layers_, seed_, files_);
    session->periodic = std::make_unique<PeriodicPolicies>(*session->first, info_, layers_, seed_,
                                                           files_);
  }
  session->last_layer = call.layer;
  return *session;
}

/// Every chunk, and what follows the prompt, sees what the compression before it left.
LiveAttention::Outputs LiveAttention::attend_in_chunks(const LayerWork& work, const Record& record,
                                                       const Budget& budget) const {
  const auto compressed = keep_in_chunks(work, record, budget, seed_, files_);
  const int64_t first = compressed.front().end, last = info_.total_len, width = work.value_dim();
  Outputs outputs{first, std::vector<float>(work.query_heads() * (last - first) * width)};
  PrefillOptions options;
  options.norm = norm_;
  options.seed = seed_;
  for (size_t c = 0; c < compressed.size(); ++c) {
    const int64_t begin = compressed[c].end;
    const int64_t end = c + 1 < compressed.size() ? compressed[c + 1].end : last;
    TraceInfo info = info_;
    info.prompt_len = begin;
    info.total_len = end;
    std::erase_if(info.query_position, [&](int64_t p) { return p >= end; });
    LayerTrace layer = work.trace();
    layer.info = &info;
    LayerWork own(layer, work.backend(), norm_);
    const Table<float> nothing(work.query_heads(), end);
    options.importance = &nothing;
    const LayerKept kept(1, {compressed[c].kept});
    PrefillReplay replay(own, kept, {record}, options);
    ReplayedOutputs part(own);
    replay.run([&](const StepBlock& block) { part.add(block); });
    const std::vector<float> z = std::move(part).sum();
    for (int64_t h = 0; h < work.query_heads(); ++h)
      std::copy_n(z.begin() + h * (end - begin) * width, (end - begin) * width,
                  outputs.z.begin() + (h * (last - first) + begin - first) * width);
  }
  return outputs;
}

std::optional<LiveAttention::Outputs> LiveAttention::attend(const Call& call) {
  LayerTrace trace = trace_.at(call.layer);
  trace.q = call.q;
  trace.k = call.k;
  trace.v = call.v;
  LayerWork work(trace, *backend_, norm_);
  const auto& kept = kept_.at(call.layer)[call.record][call.budget];
  const Record& record = records()[call.record];
  if (chosen<Schedule>(record.settings).in_chunks()) {
    if (leaves_cache_alone(work, *kept, record.settings)) return std::nullopt;
    return attend_in_chunks(work, record, record.budgets(budgets())[call.budget]);
  }
  Session& run = session(call);
  const std::vector<Record>& records = run.first->records();
  if (leaves_cache_alone(work, *kept, records[0].settings)) return std::nullopt;
  PrefillOptions options;
  options.norm = norm_;
  options.seed = seed_;
  const Table<float> nothing(work.query_heads(), info_.total_len);
  if (!kept->chosen_per_step) options.importance = &nothing;  // nobody reads shares of it
  const LayerKept alone(1, {kept});
  LayerReplay replay(work, *run.periodic, alone, records, options);
  ReplayedOutputs outputs(work);
  replay.run([&](const StepBlock& block) { outputs.add(block); });
  if (call.layer == layers_.back()) sessions_.erase({call.record, call.budget});
  return Outputs{info_.prompt_len, std::move(outputs).sum()};
}

}  // namespace kvsim
