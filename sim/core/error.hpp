#pragma once
#include <stdexcept>
#include <string>

namespace kvsim {

/// What kind of mistake an Error reports; the command line maps each to an exit code.
enum class Fault { failure = 1, usage = 2, bad_data = 3, verification = 4 };

/// The one exception for a user's mistake or bad input. `what()` is one line:
/// "WHERE: WHAT: found FOUND, expected EXPECTED (HINT)", empty parts left out.
class Error : public std::runtime_error {
 public:
  struct Parts {
    std::string what = {};      ///< what is wrong, e.g. "unknown preset"
    std::string where = {};     ///< file, object or option it was seen in
    std::string found = {};     ///< what was there
    std::string expected = {};  ///< what should have been there
    std::string hint = {};      ///< what to try, e.g. the nearest valid names
  };
  Error(Fault fault, Parts parts);

  Fault fault() const { return fault_; }
  const Parts& parts() const { return parts_; }

 private:
  Fault fault_;
  Parts parts_;
};

[[noreturn]] void usage_error(Error::Parts parts);
[[noreturn]] void bad_data(Error::Parts parts);

}  // namespace kvsim
