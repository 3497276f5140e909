#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "analysis/dataset.hpp"
#include "analysis/study_options.hpp"

namespace kvsim {

enum class OptionType { flag, count, real, word, names };

/// One option of how a study measures, declared once: its text in `--help`, its key in a sweep's
/// file, its part of what names a unit, and its entry in the results' `config`.
struct StudyOption {
  std::string key;          ///< of a sweep's file and of `config`, e.g. wo_steps
  std::string flag;         ///< on the command line, without dashes, e.g. wo-steps
  std::string placeholder;  ///< of its value there; empty for flags
  std::string meaning;      ///< in --help
  OptionType type = OptionType::flag;
  double low = 0;  ///< of counts and reals
  double high = 0;
  std::vector<std::string> words = {};            ///< of words
  std::vector<std::string> (*known)() = nullptr;  ///< names that there are; null: any

  bool (*is_set)(const StudyOptions&) = nullptr;  ///< null: always
  nlohmann::ordered_json (*read)(const StudyOptions&) = nullptr;
  /// A value that was checked; of `names` one more. A word is given by its number among `words`.
  void (*set_number)(StudyOptions&, double) = nullptr;
  void (*add_name)(StudyOptions&, const std::string&) = nullptr;

  /// "a number in [0, 1]", "one of l1, l2", ...
  std::string expected() const;
  bool in_range(double value) const { return value >= low && value <= high; }
};

/// All of them, in the order of --help.
const std::vector<StudyOption>& study_options();

/// Values of the options, by key: all that a result depends on beside the records, in a form
/// that does not change with the order of typing. Those that are not set are left out.
nlohmann::ordered_json options_text(const StudyOptions& options);

/// How a results file was measured, from its `config`: what that lacks keeps its default.
StudyOptions options_of(const Dataset& results);

/// Throws (usage) where options that belong together are not given together; `where` asked.
void check_together(const StudyOptions& options, const std::string& where);

}  // namespace kvsim
