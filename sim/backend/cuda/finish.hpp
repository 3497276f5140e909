#pragma once
#include "sim/backend/cuda/walk.hpp"

namespace kvsim::cuda {

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

void launch_finish(const Finish& finish, cudaStream_t stream);

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
