#include "run/study/known_results.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "analysis/variables.hpp"
#include "io/results_reader.hpp"
#include "sim/core/error.hpp"

namespace kvsim {
namespace {

const char* type_name(VariableType type) {
  switch (type) {
    case VariableType::float64: return "float64";
    case VariableType::int32: return "int32";
    case VariableType::int64: return "int64";
    case VariableType::uint8: return "uint8";
    case VariableType::text: break;
  }
  return "text";
}

std::string form(VariableType type, const std::vector<std::string>& dims) {
  return fmt::format("{} over [{}]", type_name(type), fmt::join(dims, ", "));
}

void check_program(const Dataset& results, const std::string& path) {
  const AttributeValue* program = results.attribute("kvsim_version");
  if (program == nullptr || !std::holds_alternative<std::string>(*program))
    bad_data({.what = "not a results file",
              .where = path,
              .found = "no attribute kvsim_version",
              .expected = "a netCDF-4 file written by kvsim"});
  const AttributeValue* version = results.attribute(kResultsVersionAttribute);
  if (version == nullptr) return;  // written before there were versions: as version 1
  const auto* number = std::get_if<int64_t>(version);
  if (number != nullptr && *number >= 1 && *number <= kResultsVersion) return;
  bad_data({.what = "results of another version",
            .where = path,
            .found = (number != nullptr ? "version " + std::to_string(*number) : "no number") +
                     ", of kvsim " + std::get<std::string>(*program),
            .expected = fmt::format("version 1 to {}", kResultsVersion),
            .hint = "a later kvsim reads it, or replay the trace again"});
}

}  // namespace

void check_known_results(const Dataset& results, const std::string& path) {
  check_program(results, path);
  if (results.has("kl_divergence") && !results.has("layer"))
    bad_data({.what = "losses of a closed loop stand where results of a replay are expected",
              .where = path,
              .expected = "a results file of kvsim replay or sweep"});
  for (const char* axis : {"policy", "budget", "budget_label", "layer", "step"})
    if (!results.has(axis)) bad_data({.what = "missing variable", .where = path, .expected = axis});
  for (const VariableDeclaration& declared : declared_variables()) {
    const Variable* found = results.find(declared.name);
    if (found == nullptr) continue;
    if (found->type() == declared.type && found->dims == declared.dim_names()) continue;
    bad_data({.what = "wrong form",
              .where = path + ": " + declared.name,
              .found = form(found->type(), found->dims),
              .expected = form(declared.type, declared.dim_names())});
  }
}

Dataset read_known_results(const std::string& path) {
  Dataset results = read_results(path);
  check_known_results(results, path);
  return results;
}

}  // namespace kvsim
