#pragma once
#include "sim/core/prelude.hpp"

namespace kvsim {

/// Needs of a record beside the tensors of a layer: files that it names (`scores=`, `table=`) and
/// the texts of the tokens, read by whoever runs the record: stages never touch a file. Errors are
/// bad data, one line.
struct SideFiles {
  virtual ~SideFiles() = default;
  /// `layers/<l>/score` [owners][n] of the HDF5 file `path`.
  virtual Table<double> scores(const std::string& path, int layer, int64_t owners,
                               int64_t entries) const = 0;
  /// The text table `path`: one row of `columns` numbers per model layer.
  virtual Table<double> table(const std::string& path, int64_t rows, int64_t columns) const = 0;
  /// `tokens/text` of the trace, [N] or empty.
  virtual std::vector<std::string> token_text() const = 0;
};

/// A part of the prompt in which scoring and ranking run on their own: the whole prompt, or one
/// segment of a fair record (policies.md 8).
struct Segment {
  Range range;                     ///< its entries
  Range candidates;                ///< those that are scored
  int64_t window = 0;              ///< entries of its own window, [candidates.end, range.end)
  std::vector<int64_t> positions;  ///< J: positions of the observing queries, ascending
  /// Queries of J that stand in earlier and later segments: they see nothing here, but count in M.
  int64_t rows_before = 0;
  int64_t rows_after = 0;
  /// Tokens of a probe that observe, too, after all of J: ascending. The whole prompt is theirs, so
  /// that every segment has all of them.
  int probe = -1;  ///< its number; -1: none
  std::vector<int64_t> probe_tokens;

  int64_t prompt_rows() const {  ///< queries of the trace itself
    return rows_before + std::ssize(positions) + rows_after;
  }
  int64_t probe_rows() const { return std::ssize(probe_tokens); }
  int64_t rows() const { return prompt_rows() + probe_rows(); }  ///< M
  /// Queries that see something here.
  int64_t own_rows() const { return std::ssize(positions) + probe_rows(); }
};

/// Candidates of one layer in the order of policies.md 10: score, then (tie=raw) the score without
/// its prior, then the more recent.
struct Ranking {
  const Table<double>* score = nullptr;      ///< [owners][n]
  const Table<double>* raw = nullptr;        ///< [owners][n], or null
  std::vector<std::vector<uint32_t>> order;  ///< per owner, best first
};

/// Scores of one layer for one record (at one budget where they depend on it). "Owners" are KV
/// heads, or query heads with granularity=query. Columns are prompt entries 0..n-1; those outside
/// the segments' candidates hold 0 and are never ranked.
struct ScoredLayer {
  int layer = 0;
  std::vector<Segment> segments;
  std::vector<uint8_t> candidate;    ///< [n] 1: takes part in the ranking
  Table<double> score;               ///< [owners][n] final score, higher = keep
  Table<double> raw;                 ///< [owners][n] score with prior=none; empty: no tie key
  Table<double> unweighted;          ///< [owners][n] score before `weight`; empty unless needed
  Table<double> unweighted_raw;      ///< the same with prior=none; empty: no tie key
  Table<double> deviation;           ///< [owners][n] standard deviation over queries, std_keep
  Table<double> mass;                ///< [owners][n] mean attention of the head, stage1=mass
  double mass_before_window = 0;     ///< attention on the last m candidates, layer mean
  double mass_of_window = 0;         ///< attention on the window itself, layer mean
  std::vector<uint8_t> token_class;  ///< [n] TokenClass; empty unless stage1 or allocate asks
  std::vector<double> statistic;     ///< what `allocate` asked to be observed of this layer
  double stream_norm = 0;            ///< of the residual stream that enters; 0: the trace has none
  /// By tie=raw or not, once they are made; they point into the tables of this object.
  std::map<bool, Ranking> ranking, ranking_unweighted;

  int64_t entries() const { return std::ssize(candidate); }
  int64_t owners() const { return score.rows(); }
};

}  // namespace kvsim
