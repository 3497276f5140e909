#pragma once
#include <memory>

#include "sim/stages/aggregate/aggregate.hpp"

namespace kvsim {

/// Statistics of slots that several aggregates share. `rows`: |J|; `slots`: those that exist from
/// the start.
std::unique_ptr<SlotStatistic> sum_of_rows(int64_t rows, int64_t slots);
std::unique_ptr<SlotStatistic> mean_of_seen_rows(int64_t rows, int64_t slots);
/// A slot starts with its first row.
std::unique_ptr<SlotStatistic> largest_of_rows(int64_t slots);
/// e <- alpha X + (1 - alpha) e; a slot starts with its first row. alpha = 1: the newest row.
std::unique_ptr<SlotStatistic> average_of_rows(double alpha, int64_t slots);
/// Mean over the last `rows` rows with weights that rise linearly from 1 to `newest`; rows before a
/// slot existed count as 0.
std::unique_ptr<SlotStatistic> mean_of_last_rows(double newest, int64_t rows, int64_t slots);
/// Standard deviation over the rows that saw the slot (std_keep).
std::unique_ptr<SlotStatistic> deviation_of_seen_rows(int64_t slots);

}  // namespace kvsim
