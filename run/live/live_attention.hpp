#pragma once
#include "io/trace_reader.hpp"
#include "run/study/study.hpp"
#include "sim/policy/policy_run.hpp"
#include "sim/replay/layer_replay.hpp"

namespace kvsim {

/// Attention over compressed caches for a model that runs with them: one layer at a time the model
/// hands over its own queries, keys and values, of the prompt and of all later tokens, and gets the
/// attention outputs z^ of the later ones, by the loops that replay a trace.
///
/// Entries of the prompt that a policy keeps are chosen from the trace, as a replay of it does;
/// what it merges, rounds or moves then, and what it chooses at later steps, comes from the tensors
/// of the call. Output projections are the trace's.
class LiveAttention {
 public:
  /// `norm`: of v W in the importance. Throws (usage) for policies that would have to know later
  /// layers before the layer in work. The reader must outlive this.
  LiveAttention(const TraceReader& reader, std::vector<Record> records, std::vector<Budget> budgets,
                std::vector<int> layers, uint64_t seed, Norm norm);
  ~LiveAttention();

  /// The trace's, but with every later query, and every query of the prompt where some of them see
  /// a compressed cache: what a call holds.
  const TraceInfo& info() const { return info_; }
  /// First position whose query may miss entries: n, or where the prompt's first chunk ends for
  /// some record with schedule=chunked.
  int64_t first() const { return first_; }
  const std::vector<Record>& records() const { return policies_->records(); }
  const std::vector<Budget>& budgets() const { return policies_->budgets(); }
  const std::vector<int>& layers() const { return layers_; }
  int64_t value_dim(int layer) const { return reader_.header(layer).value_dim; }

  /// Chooses all kept sets; reads the trace once, or twice for policies that rank across layers.
  /// Before the first call of attend().
  void choose(const std::function<void(int64_t done, int64_t all)>& progress);

  struct Call {
    size_t record = 0;  ///< of records()
    size_t budget = 0;  ///< of budgets()
    int layer = 0;      ///< of layers(); those of one record and budget are called in ascending
                        ///< order, and a call that does not ascend begins anew
    Tensor q;           ///< [Hq][M][d] at info().query_position
    Tensor k;           ///< [Hkv][N][d]
    Tensor v;           ///< [Hkv][N][dv]
  };
  /// Attention outputs of the queries from position `first` on.
  struct Outputs {
    int64_t first = 0;
    std::vector<float> z;  ///< [Hq][N - first][dv]
  };
  /// z^, or nothing where the cache of that layer stays as it is: nothing is evicted, merged,
  /// rounded or moved, so that the model's own attention is exact.
  std::optional<Outputs> attend(const Call& call);

 private:
  struct Session;  // one record at one budget on its way through the layers

  void refuse_later_surveys() const;
  Outputs attend_in_chunks(const LayerWork& work, const Record& record, const Budget& budget) const;
  Session& session(const Call& call);

  const TraceReader& reader_;
  int64_t first_;
  TraceInfo info_;
  std::vector<int> layers_;
  uint64_t seed_;
  Norm norm_;
  TraceFiles files_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<PolicyRun> policies_;
  std::map<int, LayerKept> kept_;
  std::map<int, LayerTrace> trace_;  ///< by layer, without queries, keys and values
  std::map<std::pair<size_t, size_t>, std::unique_ptr<Session>> sessions_;
};

}  // namespace kvsim
