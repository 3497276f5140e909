#pragma once
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "analysis/dataset.hpp"
#include "io/temporary_file.hpp"
#include "sim/policy/record.hpp"

/// Functions in Python that stand where presets do: `python:FILE.py:FUNCTION`. A function is called
/// once per layer by the package (python/kvsim/scoring.py), and what it returns becomes the scores
/// file of the preset `external`; all else is as for any record.
namespace kvsim::cli {

/// "python:FILE.py:FUNCTION,key=value" as the record it stands for,
/// "external,scores=python:FILE.py:FUNCTION,key=value"; any other policy as it is.
std::string with_functions(const std::string& policy);

/// Does the record take its scores from a function?
bool is_function(const Record& record);

/// A usage error for a function, of a command that calls none.
void refuse_function(const std::string& policy);

/// FILE.py of "python:FILE.py:FUNCTION".
std::string file_of_function(const std::string& function);

/// What results call records that read the scores of functions, by their canonical texts.
using FunctionNames = std::map<std::string, std::string>;

/// Scores of functions on traces, as files.
class FunctionScores {
 public:
  /// Files that go with this object.
  FunctionScores() = default;
  /// Files of `folder`/scores, named alike in every run; with `keep` they stay.
  FunctionScores(std::string folder, bool keep);
  ~FunctionScores();
  FunctionScores(const FunctionScores&) = delete;
  FunctionScores& operator=(const FunctionScores&) = delete;

  /// From here on the records of functions read the files of their scores on these layers of the
  /// trace. A mistake of the function is an Error with the line and the exit code that the package
  /// says.
  FunctionNames compute(std::vector<Record>& records, const std::string& trace,
                        const std::vector<int>& layers);

 private:
  std::string target(const std::string& function, const std::string& trace);

  std::filesystem::path folder_;
  bool keep_ = false;
  std::vector<std::filesystem::path> made_;  ///< to be removed in the end, last first
  std::vector<std::unique_ptr<TemporaryFile>> temporary_;
};

/// Results name functions instead of the files with their scores: in `policy`, and in `config` with
/// what the files say of them. Files that are not there, or were not computed by a function, keep
/// their names.
FunctionNames name_functions(Dataset& results);

/// The reverse for one policy of the results: named after a function in a file, it becomes the
/// record that reads its scores, computed again on `trace`. `asked`: the user named this policy;
/// without that nothing that a results file names is run, which is a usage error. Bad data when the
/// function is not what it was.
void restore_function(Dataset& results, int64_t policy, bool asked, const std::string& trace,
                      FunctionScores& scores);

}  // namespace kvsim::cli
