#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace kvsim::test {

/// Records made of random kinds of every scoring, protecting, allocating and constraining stage
/// with random parameters; only those that the rules allow. The same for the same seed.
std::vector<std::string> random_records(size_t count, uint64_t seed);

}  // namespace kvsim::test
