#pragma once
#include <map>
#include <string>
#include <vector>

#include "analysis/dataset.hpp"

namespace kvsim {

/// Puts results that differ in their policies together. Everything else must agree.
class ResultsJoin {
 public:
  /// Policies of the whole in their order.
  explicit ResultsJoin(std::vector<std::string> policies);

  /// `name` is the file for messages. A policy that is not of the whole or came before, and
  /// coordinates that differ, are bad data.
  void add(const Dataset& part, const std::string& name);
  /// Policies that no part had.
  std::vector<std::string> missing() const;
  /// The whole, with the first part's attributes. A variable that only some parts have is undefined
  /// in the rest.
  Dataset finish();

 private:
  void add_shape(const Dataset& part);
  void add_policies(const Dataset& part, const std::string& name, std::vector<size_t>& places);
  void add_variable(const Variable& variable, const std::vector<size_t>& places,
                    const std::string& name);
  void add_config(const Dataset& part, const std::vector<size_t>& places);

  std::vector<std::string> policies_;
  std::vector<std::string> from_;     ///< file that had each policy; empty: none yet
  std::vector<std::string> configs_;  ///< JSON of each policy
  Dataset shape_;                     ///< dimensions and attributes only
  std::map<std::string, Variable> variables_;
};

/// The part of `results` that is policy number `policy`.
Dataset one_policy(const Dataset& results, int64_t policy);

}  // namespace kvsim
