#pragma once
#include <hdf5.h>

#include <random>

#include "sim/core/prelude.hpp"

namespace kvsim::fuzz {

using Random = std::minstd_rand;

/// 0 .. bound - 1; 0 where there is nothing to choose from.
inline size_t below(Random& random, size_t bound) { return bound == 0 ? 0 : random() % bound; }

/// One change of a sound file through the library: an object removed, replaced or linked elsewhere,
/// an attribute or a dataset of another type, shape, value or storage.
void edit_hdf5(hid_t file, unsigned seed);

}  // namespace kvsim::fuzz
