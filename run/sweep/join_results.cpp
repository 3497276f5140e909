#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>

#include "run/study/known_results.hpp"
#include "run/study/study.hpp"
#include "run/sweep/sweep.hpp"

namespace kvsim {
namespace {

using nlohmann::ordered_json;

/// Copies row `from` of the leading axis to row `to`; a row has `length` values.
void copy_row(const VariableValues& source, int64_t from, VariableValues& target, int64_t to,
              int64_t length) {
  std::visit(
      [&](const auto& values) {
    auto& out = std::get<std::remove_cvref_t<decltype(values)>>(target);
    std::copy_n(values.begin() + from * length, length, out.begin() + to * length);
      },
      source);
}

/// Equal to the bit: what does not depend on the policy may hold NaN, which equals nothing.
bool same(const Variable& a, const Variable& b) {
  if (a.dims != b.dims || a.values.index() != b.values.index()) return false;
  const auto* x = std::get_if<std::vector<double>>(&a.values);
  if (x == nullptr) return a.values == b.values;
  const auto& y = std::get<std::vector<double>>(b.values);
  return x->size() == y.size() && std::memcmp(x->data(), y.data(), x->size() * sizeof(double)) == 0;
}

/// The whole, of what the parts so far have.
class Whole {
 public:
  explicit Whole(const std::vector<std::string>& policies)
      : policies_(policies), from_(policies.size()), config_(policies.size()) {}

  void add(const Dataset& part, const std::string& path) {
    if (variables_.empty()) begin(part);
    const std::vector<int64_t> places = places_of(part, path);
    for (const Dimension& dimension : part.dimensions()) {
      if (dimension.name == "policy") continue;
      if (!whole_.has_dimension(dimension.name) || whole_.size(dimension.name) != dimension.size)
        bad_data({"belongs to another run", path, dimension.name + " of another length"});
    }
    for (const VariableDeclaration& declaration : declared_variables()) {
      const Variable* const variable = part.find(declaration.name);
      if (variable == nullptr || variable->name == "policy") continue;
      const auto [known, added] = variables_.try_emplace(variable->name, *variable);
      Variable& whole = known->second;
      if (variable->dims.empty() || variable->dims[0] != "policy") {
        if (!added && !same(whole, *variable))
          bad_data({"belongs to another run", path, "other values of " + variable->name});
        continue;
      }
      if (added) whole = make_variable(declaration, whole_);
      const int64_t length = whole_.count({variable->dims.begin() + 1, variable->dims.end()});
      for (int64_t p = 0; p < std::ssize(places); ++p)
        copy_row(variable->values, p, whole.values, places[p], length);
    }
  }

  Dataset finish() {
    std::vector<std::string> missing;
    for (size_t p = 0; p < policies_.size(); ++p)
      if (from_[p].empty()) missing.push_back(policies_[p]);
    const auto some = std::span(missing).first(std::min<size_t>(missing.size(), 3));
    if (!missing.empty())
      bad_data({fmt::format("{} of {} policies are missing", missing.size(), policies_.size()),
                "merge", "", "every part of the sweep",
                fmt::format("missing: {}{}", fmt::join(some, "; "),
                            some.size() < missing.size() ? "; ..." : "")});
    for (const VariableDeclaration& declaration : declared_variables())
      if (const auto found = variables_.find(declaration.name); found != variables_.end())
        whole_.add(std::move(found->second));
    auto config = ordered_json::parse(whole_.text_attribute("config"), nullptr, false);
    if (config.is_object()) {
      config["policies"] = config_;
      whole_.set_attribute("config", config.dump());
    }
    return std::move(whole_);
  }

 private:
  /// The whole has the shape of its first part.
  void begin(const Dataset& part) {
    for (const Dimension& dimension : part.dimensions())
      whole_.add_dimension(dimension.name,
                           dimension.name == "policy" ? std::ssize(policies_) : dimension.size);
    for (const Attribute& attribute : part.attributes())
      if (attribute.name != kIdleSettings)  // of the policies of one part
        whole_.set_attribute(attribute.name, attribute.value);
    Variable& policy = variables_["policy"] = part.at("policy");
    policy.values = policies_;
  }

  /// Where the policies of a part stand in the whole.
  std::vector<int64_t> places_of(const Dataset& part, const std::string& path) {
    const auto config = ordered_json::parse(part.text_attribute("config"), nullptr, false);
    const auto configs = config.is_object() ? config.value("policies", ordered_json())
                                            : ordered_json();
    std::vector<int64_t> places;
    for (const std::string& policy : part.texts("policy")) {
      const int64_t place = std::ranges::find(policies_, policy) - policies_.begin();
      if (place == std::ssize(policies_))
        bad_data({"a policy that is not in the sweep", path, policy});
      if (!from_[place].empty())
        bad_data({"a policy twice", path, policy, "parts without doubles",
                  "it is in " + from_[place] + ", too"});
      from_[place] = path;
      if (configs.is_array() && places.size() < configs.size())
        config_[place] = configs[places.size()];
      places.push_back(place);
    }
    return places;
  }

  const std::vector<std::string>& policies_;
  std::vector<std::string> from_;     ///< [policy]: the part that had it; empty: none yet
  std::vector<ordered_json> config_;  ///< [policy]
  Dataset whole_;                     ///< without its variables until all parts are there
  std::map<std::string, Variable> variables_;
};

}  // namespace

Dataset join_results(const std::vector<std::string>& policies,
                     const std::vector<std::string>& paths) {
  Whole whole(policies);
  for (const std::string& path : paths) whole.add(read_known_results(path), path);
  return whole.finish();
}

}  // namespace kvsim
