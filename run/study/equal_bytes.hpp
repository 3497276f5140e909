#pragma once
#include <string>
#include <vector>

#include "analysis/study_options.hpp"
#include "io/trace_reader.hpp"
#include "sim/backend/backend.hpp"

namespace kvsim {

/// The forms in which bytes may be made equal: `flattened`, `padded`, `paged`, `in-place`
/// (metrics.md 9).
const std::vector<std::string>& byte_forms();

/// Attribute of results whose budgets are shares of bytes: the form.
inline constexpr const char* kEqualBytes = "equal_bytes";

/// Options without `equal_bytes` stay as they are. Else every record gets budgets of its own: at
/// each budget of `options`, a share of the prompt's full cache, the most entries with which it
/// holds no more bytes than that. The trace is scored a few times. Returns the records that hold
/// more with a single entry, and where.
std::vector<std::string> make_bytes_equal(const TraceReader& trace, Backend& backend,
                                          StudyOptions& options);

}  // namespace kvsim
