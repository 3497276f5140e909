#pragma once
#include "sim/backend/cuda/check.hpp"
#include "sim/core/prelude.hpp"

namespace kvsim::cuda {

/// A walk of some query rows over a list of keys of one KV head: scores, exponentials, sums and
/// outputs. Its state is that of a softmax over these keys alone, with a maximum of its own, so
/// that states of different keys can be put together in any order (see finish.hpp).
struct WalkItem {
  int32_t first_row = 0;  ///< rows of the row table; all of query heads of one KV head
  int32_t rows = 0;
  int32_t kv_head = 0;
  int32_t slot = 0;       ///< of the state
  int64_t first_key = 0;  ///< into the list of keys
  int32_t keys = 0;
  uint8_t masked = 0;    ///< rows do not see all of the keys
  uint8_t fresh = 0;     ///< the state starts here; otherwise it goes on
  uint8_t outputs = 0;   ///< outputs are wanted, not only sums
  uint8_t weighted = 0;  ///< sums of importance are wanted
};

/// Query rows that the kernels work on.
struct RowTable {
  const uint32_t* query = nullptr;  ///< [rows] row of the queries on the device
  const int32_t* head = nullptr;    ///< [rows] query head, ascending
  const int32_t* begin = nullptr;   ///< [rows] visible positions
  const int32_t* end = nullptr;
};

/// State of the softmax of one row over some keys, natural exponentials relative to `maximum`.
struct alignas(16) RowSums {
  float maximum = kMinusInfinity;  ///< -inf: no key was visible
  float mass = 0;
  float importance = 0;
  float unused = 0;
};

struct Walk {
  RowTable rows;
  int64_t all_rows;     ///< of the table, and of every slot
  const void* queries;  ///< [..][depth]
  const void* keys;     ///< [Hkv][key_rows][depth]
  const void* values;   ///< [Hkv][key_rows][columns]
  int64_t key_rows;
  int64_t first_position;  ///< of key row 0
  int depth, columns;
  float scale, softcap;  ///< softcap 0: none
  const WalkItem* items;
  const uint32_t* list;     ///< positions of keys
  const float* importance;  ///< [Hq][importance_columns] or null
  int64_t importance_columns;
  int heads_per_tile;  ///< query heads that the rows of a block may have
  int stages;          ///< 2: the next tile is copied while one is worked on
  int64_t slots;
  RowSums* sums;   ///< [columns / 128, rounded up][slots][all_rows]
  float* outputs;  ///< [slots][all_rows][columns], not divided by the mass
};

constexpr int kWalkColumns = 128;  ///< columns of values that one block works on
constexpr int64_t walk_column_blocks(int64_t columns) {
  return (columns + kWalkColumns - 1) / kWalkColumns;
}

template <class Type>
int64_t walk_memory(int depth, int stages, int heads) {
  const int64_t element = sizeof(typename Type::Element);
  const int64_t stage = element * Type::kKeys * (depth + Type::kPad) +
                        element * Type::kKeys * (kWalkColumns + Type::kPadValues) +
                        4 * Type::kKeys * (1 + heads);
  return element * Type::kRows * (depth + Type::kPad) + stages * stage;
}

/// Runs `items` walks, the longest of which has `most_rows` rows.
template <class Type>
void launch_walk(const Walk& walk, int64_t items, int64_t most_rows, cudaStream_t stream);

/// Slots of the replay's states: later positions, then segments of the whole prompt, then the bands
/// of the plans.
constexpr int kLaterSlot = 0;
constexpr int kFirstPromptSlot = 1;

struct FinishPlan {
  int32_t first_slot = 0;
  int32_t bands = 0;
  int32_t first_set = 0;
  int32_t first_output = 0;  ///< number of the first set among those with outputs; -1: none
};

/// Puts states of different keys together: the whole softmax, and that of every kept set.
struct Finish {
  int64_t rows;
  int dv, columns;
  int prompt_slots, plans;
  const RowSums* sums;   ///< [slots][rows]
  const float* outputs;  ///< [slots][rows][columns]
  const FinishPlan* plan;
  const uint8_t* everything;  ///< [sets][Hq]: the set keeps the whole prompt
  const int32_t* head;        ///< [rows]
  int heads;
  const float* sinks;  ///< [Hq] or null
  double* full;        ///< [4][rows] shares of prompt and later attention, importances
  double* kept;        ///< [2][sets][rows] kept attention, kept importance
  int sets;
  float* z;      ///< [rows][dv]
  float* delta;  ///< [sets with outputs][rows][dv]
};

/// z of rows whose whole softmax is in all slots together, and nothing else; for attention().
struct FinishOutputs {
  int64_t rows;
  int slots;
  int dv, columns;
  const RowSums* sums;   ///< [slots][rows]
  const float* outputs;  ///< [slots][rows][columns]
  const int32_t* head;
  const float* sinks;
  float* z;  ///< [rows][dv]
};
void launch_finish_outputs(const FinishOutputs& finish, cudaStream_t stream);

}  // namespace kvsim::cuda
