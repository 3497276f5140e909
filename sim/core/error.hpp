#pragma once
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace kvsim {

/// Kind of mistake that an Error reports; the command line maps each to an exit code.
enum class Fault { failure = 1, usage = 2, bad_data = 3 };

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

/// "A, B or C".
std::string either(const std::vector<std::string>& names);

/// The names most like `text` by edit distance (a swap of neighbours counts once), nearest first,
/// at most `most`; only those close enough to be what was meant. Words of one meaning (mean, avg)
/// are nearest of all. May be empty.
std::vector<std::string> nearest_names(std::string_view text, const std::vector<std::string>& names,
                                       size_t most = 3);

/// "did you mean A, B or C?", or nothing when no name is near. For Error::Parts::hint.
std::string did_you_mean(std::string_view text, const std::vector<std::string>& names);

}  // namespace kvsim
