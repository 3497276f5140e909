#pragma once
#include <limits>
#include <source_location>
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
  std::vector<std::string> test_values = {};
  bool (*nests)(const Parameter&, const Settings&) = nullptr;
  size_t stage = 0;   ///< place of its stage among all, in the order in which a policy runs them
  size_t number = 0;  ///< of its Key

  std::string range() const;    ///< "[0, 1]", "odd, >= 1", "raw | recent"
  const char* section() const;  ///< of docs/policies.md, which describes it
};

/// Value of Parameter::nests.
bool nests_at_default(const Parameter& parameter, const Settings& settings);

// Notes of a declaration behind key, values, default and meaning.

/// Every record reads it, not only those with a kind that names it.
inline constexpr auto always = [](Parameter& p) { p.always = true; };
/// Do budgets nest, as far as this value is concerned (Kind::nests)? Where nothing is said, the
/// kinds that name the key have spoken for it; a key that no kind names does not let them nest.
/// A fraction of the budget never does.
constexpr auto lets_nest_if(bool (*nests)(const Parameter&, const Settings&)) {
  return [nests](Parameter& p) { p.nests = nests; };
}
inline constexpr auto lets_nest = [](Parameter& p) {
  p.nests = [](const Parameter&, const Settings&) { return true; };
};
/// Records whose kinds do not fit do not read it.
template <class... Conditions>
auto only_with(KindCondition first, Conditions... more) {
  return [=](Parameter& p) { p.only_with = {first, KindCondition(more)...}; };
}
/// Says what is wrong with a text, or "".
inline auto checked_by(std::string (*fault)(std::string_view)) {
  return [fault](Parameter& p) { p.fault = fault; };
}
/// Values that tests try, apart by blanks, on prompts of 19 tokens or more with spans `head`,
/// `middle` and `tail`. Of words and flags they try all.
inline auto tested(const char* values) {
  return [values](Parameter& p) { p.test_values = split_words(values); };
}

/// Declares a parameter while the program starts; a key declared twice throws. Its value is read by
/// it: settings.real(ema_alpha). `values` says what the key takes: "raw | recent", "flag", "kind",
/// "file", "text UNIT"; or count, odd, number or share with a range and perhaps a unit, as in
/// "count >= 1 entries" and "number (0, 1]". " or none" at the end lets it be unset.
struct Declare : Key {
  /// The folder of the file that a declaration stands in is the stage of its key, which with the
  /// key says where it stands in canonical records.
  struct Name {
    Name(const char* text, std::source_location at = std::source_location::current())
        : key(text), file(at.file_name()) {}
    const char *key, *file;
  };
  template <class... Notes>
  Declare(Name name, std::string_view values, const char* fallback, const char* meaning,
          const Notes&... notes)
      : Declare([&] {
          Parameter parameter = read(name, values, fallback, meaning);
          (notes(parameter), ...);
          return parameter;
        }()) {}

 private:
  explicit Declare(Parameter parameter);
  static Parameter read(Name name, std::string_view values, const char* fallback,
                        const char* meaning);
};

const Parameter& parameter_of(Key key);
const Parameter* find_parameter(std::string_view key);
/// All declared parameters in canonical order.
std::vector<const Parameter*> parameters();

/// Canonical text of a typed value ("0.20" -> "0.2", "016" -> "16"); throws a usage error that
/// says what the key takes.
std::string canonical_value(const Parameter& parameter, std::string_view typed);

}  // namespace kvsim
