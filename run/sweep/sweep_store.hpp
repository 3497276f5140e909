#pragma once
#include <string>
#include <utility>

#include "analysis/dataset.hpp"

namespace kvsim {

/// Finished units of sweeps: one results file of one policy each, in a folder, named by the unit's
/// key. A unit is there complete or not at all, whatever ends the program; sweeps with units in
/// common share them.
class SweepStore {
 public:
  explicit SweepStore(std::string folder) : folder_(std::move(folder)) {}

  /// Makes the folder when it is absent, and takes away what killed runs left unfinished.
  void open() const;
  bool has(const std::string& key) const;
  void save(const std::string& key, const Dataset& unit) const;
  /// A unit that was damaged later is bad data; the message says how to get it anew.
  Dataset load(const std::string& key) const;
  std::string path(const std::string& key) const;

 private:
  std::string folder_;
};

}  // namespace kvsim
