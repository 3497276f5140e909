#pragma once
#include <string>
#include <utility>
#include <vector>

#include "analysis/dataset.hpp"
#include "sim/policy/record.hpp"

namespace kvsim {

/// A record, and the records that replay it with other ways to aggregate over its window
/// (metrics.md 1, fragility): every row of the window alone, the maximum, and DefensiveKV.
struct FragilityGroup {
  std::string base;                  ///< canonical texts
  std::vector<std::string> singles;  ///< aggregate=single,single_row=0..m-1
  std::string max;                   ///< aggregate=max,group=max
  /// DefensiveKV's step in its own order (Algorithm 1): the same of attention alone, then the
  /// prior, and only then the norm, without which a prior that ties entries changes no choice.
  std::string defensive;
  std::string published;  ///< defensivekv:code with the record's window
};

/// Empty `singles` for records without a window of queries of known length.
FragilityGroup fragility_group(const Record& record);

/// The groups of all records that have one.
std::vector<FragilityGroup> fragility_groups(const std::vector<Record>& records);

/// Least, middle and largest value over the single rows.
struct Band {
  double low = 0;
  double middle = 0;
  double high = 0;
};

/// Stream error (NaN when it was not measured), and over layers the mean of the means of retained
/// importance, its worst, and the sum of outliers.
template <class Value>
struct FragilityMeasures {
  Value stream, mean, min, outliers;
};

/// One block of the summary.
struct FragilityRow {
  std::string base;
  std::string budget;
  FragilityMeasures<Band> single;  ///< over the single rows
  /// Name under which the record is compared.
  std::vector<std::pair<std::string, FragilityMeasures<double>>> others;
};

/// Per group and budget of a results file that holds all records of the groups.
std::vector<FragilityRow> fragility_rows(const Dataset& results,
                                         const std::vector<FragilityGroup>& groups);

}  // namespace kvsim
