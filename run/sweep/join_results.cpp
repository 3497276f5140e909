#include <nlohmann/json.hpp>

#include "run/study/study.hpp"
#include "run/sweep/sweep.hpp"

namespace kvsim {
namespace {

using nlohmann::ordered_json;

bool has_policies(const Variable& variable) {
  return !variable.dims.empty() && variable.dims[0] == "policy";
}

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

}  // namespace

ResultsJoin::ResultsJoin(const std::vector<std::string>& policies) {
  for (const std::string& policy : policies) policies_.push_back({policy});
}

void ResultsJoin::add(const Dataset& part, const std::string& name, bool some) {
  if (!part.has("policy") || part.at("policy").type() != VariableType::text)
    bad_data({"not a results file", name, "no policies"});
  const auto config = ordered_json::parse(part.text_attribute("config"), nullptr, false);
  const auto configs = config.is_object() ? config.value("policies", ordered_json())
                                          : ordered_json();
  std::vector<Policy*> places;  // of the part's policies; null: left out
  for (const std::string& policy : part.texts("policy")) {
    const auto found = std::ranges::find(policies_, policy, &Policy::name);
    const bool known = found != policies_.end();
    if (!known && !some) bad_data({"a policy that is not in the sweep", name, policy});
    if (known && !found->from.empty())
      bad_data({"a policy twice", name, policy, "parts without doubles",
                "it is in " + found->from + ", too"});
    if (known) found->from = name;
    if (known && configs.is_array() && places.size() < configs.size())
      found->config = configs[places.size()].dump();
    places.push_back(known ? &*found : nullptr);
  }
  if (shape_.dimensions().empty()) begin(part);
  for (const Dimension& dimension : part.dimensions()) {
    if (dimension.name == "policy") continue;
    if (!shape_.has_dimension(dimension.name) || shape_.size(dimension.name) != dimension.size)
      bad_data({"belongs to another run", name, dimension.name + " of another length"});
  }
  for (const Variable& variable : part.variables())
    if (variable.name != "policy") add_variable(variable, places, name);
}

/// The whole has the shape of its first part.
void ResultsJoin::begin(const Dataset& part) {
  for (const Dimension& dimension : part.dimensions()) {
    const bool policy = dimension.name == "policy";
    shape_.add_dimension(dimension.name, policy ? std::ssize(policies_) : dimension.size);
  }
  for (const Attribute& attribute : part.attributes())
    if (attribute.name != kIdleSettings)  // of the policies of one part
      shape_.set_attribute(attribute.name, attribute.value);
  std::vector<std::string> names;
  for (const Policy& policy : policies_) names.push_back(policy.name);
  Variable& policy = variables_["policy"] = part.at("policy");
  policy.values = std::move(names);
}

void ResultsJoin::add_variable(const Variable& variable, const std::vector<Policy*>& places,
                               const std::string& name) {
  const auto known = variables_.find(variable.name);
  if (!has_policies(variable)) {
    if (known == variables_.end())
      variables_.emplace(variable.name, variable);
    else if (!same(known->second, variable))
      bad_data({"belongs to another run", name, "other values of " + variable.name});
    return;
  }
  if (known == variables_.end())
    variables_.emplace(variable.name, make_variable(declared(variable.name), shape_));
  Variable& whole = variables_.at(variable.name);
  if (whole.dims != variable.dims || whole.type() != variable.type())
    bad_data({"belongs to another run", name, variable.name + " of another shape"});
  const int64_t length = shape_.count({variable.dims.begin() + 1, variable.dims.end()});
  for (int64_t p = 0; p < std::ssize(places); ++p)
    if (places[p]) copy_row(variable.values, p, whole.values, places[p] - policies_.data(), length);
}

std::vector<std::string> ResultsJoin::missing() const {
  std::vector<std::string> names;
  for (const Policy& policy : policies_)
    if (policy.from.empty()) names.push_back(policy.name);
  return names;
}

Dataset ResultsJoin::finish() {
  Dataset whole = std::move(shape_);
  for (const VariableDeclaration& declaration : declared_variables()) {
    const auto found = variables_.find(declaration.name);
    if (found != variables_.end()) whole.add(std::move(found->second));
  }
  auto config = ordered_json::parse(whole.text_attribute("config"), nullptr, false);
  if (config.is_object()) {
    config["policies"] = ordered_json::array();
    for (const Policy& policy : policies_)
      if (!policy.config.empty()) config["policies"].push_back(ordered_json::parse(policy.config));
    whole.set_attribute("config", config.dump());
  }
  return whole;
}

}  // namespace kvsim
