#pragma once
#include <cstdint>
#include <map>
#include <vector>

#include "sim/core/array.hpp"
#include "sim/core/layer_trace.hpp"
#include "sim/stages/kind.hpp"
#include "tests/reference/rational.hpp"

/// What a record keeps, in float64 and plain loops written from the definitions of the stages one
/// by one. Slow and obviously right; kept for ever, and never optimised. It shares nothing with
/// sim/ but the containers.
namespace kvsim::reference {

using Row = std::vector<double>;

/// One record at one budget on a whole trace.
struct PolicyCase {
  const TraceInfo* info = nullptr;
  std::vector<const LayerTrace*> layers;  ///< of the run, ascending
  Settings settings;
  std::string budget;  ///< as typed
  uint64_t seed = 0;
  std::map<int, Table<double>> scores;  ///< of indicator=external
  Table<double> table;                  ///< of allocate=duo and table
  std::vector<std::string> texts;       ///< of the tokens

  bool per_query_head() const { return settings.is("granularity", "query"); }
  int owners() const { return per_query_head() ? info->num_query_heads : info->num_kv_heads; }
  int kv_head(int owner) const { return per_query_head() ? owner / info->group_size() : owner; }
  int64_t n() const { return info->prompt_len; }
  bool is_count() const { return budget.find_first_of(".%") == std::string::npos; }
  Rational ratio() const;   ///< rho, B/n for a count
  int64_t entries() const;  ///< B
  int64_t window() const;   ///< m; 0 unless queries=window
  int64_t share(const char* key, int64_t whole) const;
  std::vector<Range> segments() const;  ///< of `constrain`; one otherwise
  bool rescored() const;                ///< segments are scored on their own
  bool skips(int layer) const;
  size_t probe() const;  ///< number of the record's probe
};

/// Numbers of queries from here on are tokens of the record's probe: far behind every position.
inline constexpr int64_t kProbeQuery = int64_t{1} << 40;

/// A part of the prompt that is scored on its own.
struct Part {
  Range range;
  std::vector<int64_t> queries;     ///< J, positions; then tokens of a probe
  int64_t prompt_queries = 0;       ///< of these, those of the trace itself; where a probe joins
  std::vector<int64_t> candidates;  ///< C
  int64_t window = 0;
};
std::vector<Part> parts_of(const PolicyCase& c);

/// Scores of one layer, [owner][n]; entries that are no candidates hold 0.
struct Scores {
  int layer = 0;  ///< the model's index
  std::vector<uint8_t> candidate;
  std::vector<Row> final_score, final_raw;      ///< after normalize; raw: with prior=none
  std::vector<Row> unweighted, unweighted_raw;  ///< before weight
  std::vector<Row> deviation;                   ///< of the grouped row, for std_keep
  std::vector<Row> mean_attention;              ///< over group and J, for stage1=mass
  double shifted_bias = 0, window_bias = 0;
  double entropy = 0, variance = 0;  ///< cake
  Row summed_variance;               ///< d2o: v_h
};
/// The scores of what is kept or evicted together: of all owners, and of blocks. [owner][c] of
/// `candidates`.
void shape_scores(const PolicyCase& c, const std::vector<int64_t>& candidates,
                  std::vector<Row>& scores);
/// With union_layers, the same of all layers: one row of each stands for its owners.
void unite_layers(const PolicyCase& c, std::vector<Scores>& layers);
/// Entries of the block that holds i.
std::vector<int64_t> block_of(const PolicyCase& c, int64_t i);
/// Throws std::domain_error when a score is not a number.
Scores score_layer(const PolicyCase& c, const LayerTrace& layer);

struct Head {
  std::vector<int64_t> kept;     ///< ascending
  std::vector<int64_t> guarded;  ///< protected entries that were kept
  int64_t tied = 0;              ///< tied_at_threshold
};
struct PolicyResult {
  std::vector<std::vector<Head>> layers;  ///< [layer of the run][owner]
  /// Smallest relative distance between scores whose order decided something: results of another
  /// arithmetic may differ where this is tiny.
  double closest = 1;
};
PolicyResult run_policy(const PolicyCase& c);
/// schedule=chunked: again and again a prompt of what is there.
PolicyResult run_in_chunks(const PolicyCase& c);

/// apportion(T, x, cap) of the rules: largest remainders, with a cap.
std::vector<int64_t> apportion(int64_t total, const Row& weights, int64_t cap);

}  // namespace kvsim::reference
