#pragma once
#include <vector>

#include "sim/backend/backend.hpp"
#include "sim/backend/cpu/scratch.hpp"

namespace kvsim {

/// What one thread needs to work on tiles of the replay. ld, ldv: padded rows of a tile, padded dv.
struct TileMemory {
  Scratch<float> queries;       ///< [d][ld]
  Scratch<float> keys;          ///< [some keys][d]
  Scratch<float> values;        ///< [chunk][ldv]
  Scratch<float> scores;        ///< [chunk][ld]; after a block, columns of W_O
  Scratch<float> weights;       ///< [chunk][heads + kPad]
  Scratch<float> accumulators;  ///< full prompt, later positions, then the slots of the plans
};

/// Large memory of the replay and its projections. The backend keeps it from layer to layer:
/// touching new pages would cost several percent of a short replay.
struct ReplayMemory {
  std::vector<ReplayBlock> blocks;      ///< in flight together
  std::vector<Scratch<float>> outputs;  ///< `delta` of all sets, per block
  std::vector<TileMemory> tiles;        ///< one per thread
  Scratch<float> projected;             ///< W_O, which becomes its factor
};

}  // namespace kvsim
