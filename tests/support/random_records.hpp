#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "sim/stages/kind.hpp"

namespace kvsim::test {

/// Which kinds are drawn; those that tests/reference knows if nothing else is said.
using DrawnKinds = std::function<bool(const KindInfo&)>;
bool has_reference(const KindInfo& kind);

/// Records made of kinds of every stage that tests/reference knows, and of the values that
/// parameters declare for tests; only those that the rules allow. The same for the same seed. Every
/// die is thrown by name: the kind with the highest number wins that the record may have. A kind
/// more changes no record but those that hold it.
std::vector<std::string> random_records(size_t count, uint64_t seed,
                                        const DrawnKinds& drawn = has_reference);
/// The same, each of them with this kind; fewer where nothing is left to vary.
std::vector<std::string> random_records_with(const KindInfo& kind, size_t count, uint64_t seed);

/// KVSIM_RECORDS in the environment, how many random records the tests against float64 code compare
/// (docs/debugging.md 4); `usual` where it is not set.
size_t asked_records(size_t usual);

}  // namespace kvsim::test
