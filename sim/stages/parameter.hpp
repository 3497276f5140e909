#pragma once
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "sim/stages/settings.hpp"

namespace kvsim {

enum class ValueType { count, real, flag, word, kind, share, text };

/// A condition on the kind that a record chose for a stage.
struct KindCondition {
  const char* stage;
  bool (*fits)(const Kind&);
};

/// One key of a policy record, declared once, beside the code that reads it. The declaration
/// parses records, checks ranges, prints `kvsim policies` and is recorded in the results.
struct Parameter {
  std::string key;
  double place = 0;  ///< order in canonical records: section * 100 + position
  ValueType type = ValueType::text;
  std::string fallback;  ///< default value
  std::string meaning;   ///< one line
  std::string unit = "1";
  double low = 0;  ///< least value of count, real, share
  double high = std::numeric_limits<double>::infinity();
  bool low_open = false;  ///< low itself is not allowed
  bool high_open = false;
  bool odd = false;                                  ///< counts only
  std::vector<std::string> words = {};               ///< values of type word
  std::string (*fault)(std::string_view) = nullptr;  ///< what is wrong with a text, or ""
  bool may_be_none = false;                          ///< `none` stands for "not set"
  /// Records read it: all of them, if not only those with a kind that names it; and of these those
  /// alone whose kinds fit.
  bool always = false;
  std::vector<KindCondition> only_with = {};
  bool is_file = false;  ///< the path of a file that the record needs
  /// Values that tests try, on prompts of 19 tokens or more with spans `head`, `middle` and `tail`.
  /// Of words and flags they try all.
  std::vector<std::string> test_values = {};
  /// Do budgets nest, as far as this value is concerned (Kind::nests)? Where nothing is said, the
  /// kinds that name the key have spoken for it; a key that no kind names does not let them nest.
  /// A fraction of the budget never does.
  bool (*nests)(const Parameter&, const Settings&) = nullptr;
  size_t number = 0;  ///< of its Key; set by its declaration

  std::string range() const;  ///< "[0, 1]", "odd, >= 1", "raw | recent"
};

/// Values of Parameter::nests.
inline bool nests_always(const Parameter&, const Settings&) { return true; }
bool nests_at_default(const Parameter& parameter, const Settings& settings);

/// Declares a parameter while the program starts; a key or a place declared twice throws. Its value
/// is read by it: settings.real(ema_alpha).
struct Declare : Key {
  explicit Declare(Parameter parameter);
};

const Parameter& parameter_of(Key key);
const Parameter* find_parameter(std::string_view key);
/// All declared parameters in canonical order.
std::vector<const Parameter*> parameters();

/// Canonical text of a typed value ("0.20" -> "0.2", "016" -> "16"); throws a usage error that
/// says what the key takes.
std::string canonical_value(const Parameter& parameter, std::string_view typed);

}  // namespace kvsim
