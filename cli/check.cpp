#include "cli/check.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <memory>
#include <random>
#include <utility>

#include "cli/terminal.hpp"
#include "run/check/check_layer.hpp"

namespace kvsim::cli {
namespace {

/// The CPU backend for the instruction set that the environment names; "" is the widest.
std::unique_ptr<Backend> backend_for(const char* isa) {
  const char* const before = std::getenv("KVSIM_ISA");
  const std::string kept = before != nullptr ? before : "";
  *isa == '\0' ? unsetenv("KVSIM_ISA") : setenv("KVSIM_ISA", isa, 1);
  std::unique_ptr<Backend> made = make_cpu_backend();
  kept.empty() ? unsetenv("KVSIM_ISA") : setenv("KVSIM_ISA", kept.c_str(), 1);
  return made;
}

/// Instruction set of a CPU backend, the last word of its device.
std::string isa_of(const Backend& backend) {
  const std::string device = backend.device();
  return device.substr(device.rfind(' ') + 1);
}

/// Another way to compute the same, and what it is called; the same way where there is no other.
std::pair<std::unique_ptr<Backend>, std::string> another(const Backend& backend) {
  if (backend.name() != std::string("cpu")) return {backend_for(""), "the CPU"};
  auto other = backend_for(isa_of(backend) == "portable" ? "" : "portable");
  std::string name = isa_of(*other);
  return {std::move(other), std::move(name)};
}

/// "output_error 1.1e-06, ..." with the largest first.
std::string differences(std::vector<CheckedVariable> variables, size_t most) {
  std::ranges::stable_sort(variables, std::greater<>(), &CheckedVariable::difference);
  std::vector<std::string> said;
  for (const CheckedVariable& one : variables)
    if (said.size() < most) said.push_back(fmt::format("{} {:.1e}", one.name, one.difference));
  if (variables.size() > most) said.push_back(fmt::format("{} more", variables.size() - most));
  return said.empty() ? "nothing to compare" : fmt::format("{}", fmt::join(said, ", "));
}

double largest(const std::vector<CheckedVariable>& variables) {
  double most = 0;
  for (const CheckedVariable& one : variables) most = std::max(most, one.difference);
  return most;
}

}  // namespace

bool check_replay(const TraceReader& reader, const StudyOptions& options, const Dataset& results,
                  Backend& backend, std::FILE* out) {
  const auto& layers = std::get<std::vector<int32_t>>(results.at("layer").values);
  std::random_device dice;
  const int layer = layers[dice() % layers.size()];
  const auto [other, name] = another(backend);
  const LayerCheckResult found = check_run(reader, options, results, layer, backend, *other);
  const bool plain_good = largest(found.plain) <= kPlainLimit;
  // Scores that are level to the last bit may be ranked otherwise: other sets lose other amounts.
  const bool other_good = found.moved > 0 || largest(found.other) <= kOtherLimit;
  fmt::print(out, "\ncheck of layer {}: largest differences, relative above 1\n", layer);
  fmt::print(out, "  {:<18} {}{}\n", "plain float64", differences(found.plain, 3),
             plain_good ? "" : "  FAILED");
  if (!found.left_out.empty())
    fmt::print(out, "  {:<18} not compared there, since more than dropping is done\n",
               printable(fmt::format("{}", fmt::join(found.left_out, "; "))));
  fmt::print(out, "  {:<18} {}; {} of {} kept entries are others{}\n", name,
             differences(found.other, 3), found.moved, found.kept, other_good ? "" : "  FAILED");
  if (plain_good && other_good) return true;
  print_error(fmt::format("{}: layer {} differs by more than {:g}: {}", reader.info().path, layer,
                          kPlainLimit, "this machine, or this build of kvsim, computes wrongly"));
  return false;
}

}  // namespace kvsim::cli
