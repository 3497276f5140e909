#pragma once
#include "sim/core/layer_trace.hpp"
#include "sim/policy/prepared_record.hpp"
#include "sim/policy/record.hpp"
#include "sim/stages/kind.hpp"

namespace kvsim {

/// Throws when a trace cannot serve some record at some budget: bad data, naming the policy and
/// what it needs and the trace holds; usage for whitelists that do not fit and the like. Asks what
/// the trace holds and reads no tensor. `asked_by` follows a policy's name in messages.
void check_records(const std::vector<Record>& records, const std::vector<Budget>& budgets,
                   const TraceInfo& info, const std::vector<int>& layers, const SideFiles& files,
                   const std::string& asked_by = "");

/// SPEC of `kvsim capture --probe SPEC` that stores what the record asks of its probe.
std::string probe_spec(const Settings& settings);

/// Numbers of the probes whose queries observe for some record.
std::set<int> observing_probes(const std::vector<Record>& records, const TraceInfo& info);

/// Candidates of every owner, best first (policies.md 10).
Ranking rank(const Table<double>& score, const Table<double>& raw, bool tie_by_raw,
             const std::vector<uint8_t>& candidate);

/// All policies of a run over all its layers: score, rank, allocate, select. The trace can serve
/// them: check_records() was asked (trace_check.hpp). Layers must be given in ascending order.
/// Records that rank across layers see every layer twice.
class PolicyRun {
 public:
  /// `layers`: those to be replayed (sliding-window layers already left out), ascending. `info`
  /// and `files` must outlive the run.
  PolicyRun(std::vector<Record> records, std::vector<Budget> budgets, const TraceInfo& info,
            std::vector<int> layers, uint64_t seed, const SideFiles& files);
  ~PolicyRun();

  const std::vector<Record>& records() const;
  const std::vector<Budget>& budgets() const;

  bool needs_survey() const;     ///< some record ranks or budgets across layers by its scores
  void survey(LayerWork& work);  ///< first pass over one layer
  void finish_survey();          ///< after the last layer of the first pass

  LayerKept select(LayerWork& work);  ///< second (or only) pass over one layer

  double scoring_seconds() const;  ///< of all layers so far; the rest of both passes ranks

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

/// What is kept after the chunk of a prompt that ends at a position.
struct KeptAfterChunk {
  int64_t end = 0;
  std::shared_ptr<const KeptSets> kept;
};
/// schedule=chunked on one layer (policies.md 12): the prompt comes in chunks, and the cache, or
/// the chunk, is compressed after each, so that what left is not there any more.
std::vector<KeptAfterChunk> keep_in_chunks(const LayerWork& work, Record record,
                                           const Budget& budget, uint64_t seed,
                                           const SideFiles& files);

}  // namespace kvsim
