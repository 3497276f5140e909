#pragma once

namespace kvsim {

/// A squared distance below this share of its parts is taken from the difference itself.
inline constexpr double kCancelled = 1e-8;

}  // namespace kvsim
