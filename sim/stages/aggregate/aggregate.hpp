#pragma once
#include "sim/stages/kind.hpp"

namespace kvsim {
namespace keys {
extern const Declare ema_alpha, power;
}

/// Folds rows into one: sees the rows of J in ascending order and keeps no more than a few numbers
/// per column, so that whole-prompt scores need no n x n matrix.
struct Aggregation {
  virtual ~Aggregation() = default;
  /// Columns `first`.. of row number j (0-based) of M. Of one column all rows come in order; parts
  /// of other columns may come side by side.
  virtual void add(int64_t j, int64_t first, std::span<const double> part) = 0;
  /// The query of row j sees its first `visible` columns. Once for every row, beside no other call.
  virtual void see(int64_t /*j*/, int64_t /*visible*/) {}
  virtual void finish(std::span<double> out) = 0;

  /// [M] weights, where the rows count only through their weighted sum; else empty. `add_sum` is
  /// then as good as `add` and `see` for every row: row j sees its first visible[j] columns.
  virtual std::span<const double> weights() const { return {}; }
  virtual void add_sum(std::span<const double> /*sum*/, std::span<const int64_t> /*visible*/) {}
};

/// Aggregation of slots that come and go while decoding (policies.md 12): columns are slots. It
/// starts from the prompt rows of J and goes on with one row per step.
class SlotStatistic : public Aggregation {
 public:
  /// One more row over all slots; the query sees the first `visible` of them.
  void add_row(std::span<const double> row, int64_t visible) {
    see(rows_, visible);
    add(rows_++, 0, row);
  }
  virtual double score(int64_t slot) const = 0;
  void finish(std::span<double> out) override {
    for (int64_t s = 0; s < std::ssize(out); ++s) out[s] = score(s);
  }
  virtual void append() = 0;
  virtual void erase(std::span<const int64_t> slots) = 0;  ///< ascending
  /// Slot `from` becomes part of `into`; weights are those of their entries.
  virtual void merge(int64_t from, int64_t into, double weight_from, double weight_into) = 0;

 private:
  int64_t rows_ = 0;
};

/// Over queries (policies.md 5.4).
struct Aggregate : NestingKind {
  explicit Aggregate(KindInfo info) : NestingKind("aggregate", std::move(info)) {}
  /// A kind overrides `follow`, or, where it cannot go on from step to step, `start`. Both, where
  /// going on is another computation: over the last rows alone, say.
  virtual std::unique_ptr<Aggregation> start(const Settings& settings, int64_t rows,
                                             int64_t columns) const {
    return follow(settings, rows, columns);
  }
  /// Over |J| = rows rows and then on; null where a kind cannot.
  virtual std::unique_ptr<SlotStatistic> follow(const Settings&, int64_t /*rows*/,
                                                int64_t /*slots*/) const {
    return nullptr;
  }
  virtual bool follows_slots() const { return false; }
  /// No aggregation: every step is scored by its own row (schedule=per-step).
  virtual bool per_step() const { return false; }
};

/// Standard deviation over the rows that saw the slot (std_keep).
std::unique_ptr<SlotStatistic> deviation_of_seen_rows(int64_t slots);

}  // namespace kvsim
