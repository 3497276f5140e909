#pragma once
#include <cstdint>
#include <string>

#include "sim/core/array.hpp"

/// Files that a policy record names. Every fault is bad data (one line), a missing file too.
namespace kvsim {

/// `layers/<layer>/score` of an HDF5 file: [owners][entries], where an owner is a KV head, or a
/// query head for records with granularity=query. Scores must be finite.
Table<double> read_scores(const std::string& path, int layer, int64_t owners, int64_t entries);

/// A text table: one line per model layer, `columns` numbers each, separated by white space; `#`
/// starts a comment, lines without numbers do not count. Returns [rows][columns].
Table<double> read_table(const std::string& path, int64_t rows, int64_t columns);

}  // namespace kvsim
