#pragma once
#include <cstdint>
#include <string>

#include "sim/core/array.hpp"

/// Files that a policy record names. Every fault is bad data (one line), a missing file too.
namespace kvsim {

/// `layers/<layer>/score` of an HDF5 file: [owners][entries], where an owner is a KV head, or a
/// query head for records with granularity=query. Scores must be finite.
Table<double> read_scores(const std::string& path, int layer, int64_t owners, int64_t entries);

/// Folder in which this process finds the scores of functions in Python
/// (`python:FILE.py:FUNCTION`): of each function a folder, in it a file per trace. Without one
/// `scores_file` refuses functions.
void set_scores_folder(const std::string& folder);

/// The file that `scores` of a record means on a trace: itself, or that of a function's scores.
std::string scores_file(const std::string& scores, const std::string& trace);

/// Does `scores` of a record name a function?
bool is_function(const std::string& scores);

/// JSON that a file of scores holds about the function that computed them; empty without one.
std::string described_function(const std::string& file);

/// A text table: one line per model layer, `columns` numbers each, separated by white space; `#`
/// starts a comment, lines without numbers do not count. Returns [rows][columns].
Table<double> read_table(const std::string& path, int64_t rows, int64_t columns);

}  // namespace kvsim
