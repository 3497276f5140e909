#pragma once
#include "sim/backend/layer_work.hpp"

namespace kvsim {

/// [Hq][N] norm of v_i W^h of prompt and later entries; of the prompt's the layer's own are used.
Table<float> norms_of_all(LayerWork& work, Norm norm);

}  // namespace kvsim
