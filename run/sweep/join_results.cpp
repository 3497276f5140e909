#include <nlohmann/json.hpp>

#include "analysis/dataset.hpp"
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

ResultsJoin::ResultsJoin(std::vector<std::string> policies)
    : policies_(std::move(policies)), from_(policies_.size()), configs_(policies_.size()) {}

void ResultsJoin::add(const Dataset& part, const std::string& name) {
  if (!part.has("policy") || part.at("policy").type() != VariableType::text)
    bad_data({"not a results file", name, "no policies"});
  std::vector<size_t> places;
  add_policies(part, name, places);
  if (shape_.dimensions().empty()) add_shape(part);
  for (const Dimension& dimension : part.dimensions()) {
    if (dimension.name == "policy") continue;
    if (!shape_.has_dimension(dimension.name) || shape_.size(dimension.name) != dimension.size)
      bad_data({"belongs to another run", name, dimension.name + " of another length"});
  }
  for (const Variable& variable : part.variables())
    if (variable.name != "policy") add_variable(variable, places, name);
  add_config(part, places);
}

void ResultsJoin::add_shape(const Dataset& part) {
  for (const Dimension& dimension : part.dimensions()) {
    const bool policy = dimension.name == "policy";
    shape_.add_dimension(dimension.name, policy ? std::ssize(policies_) : dimension.size);
  }
  for (const Attribute& attribute : part.attributes()) {
    if (attribute.name == kIdleSettings) continue;  // of the policies of one part
    shape_.set_attribute(attribute.name, attribute.value);
  }
  Variable policy = part.at("policy");
  policy.values = policies_;
  variables_.emplace("policy", std::move(policy));
}

void ResultsJoin::add_policies(const Dataset& part, const std::string& name,
                               std::vector<size_t>& places) {
  for (const std::string& policy : part.texts("policy")) {
    const auto found = std::ranges::find(policies_, policy);
    if (found == policies_.end()) bad_data({"a policy that is not in the sweep", name, policy});
    const auto place = static_cast<size_t>(found - policies_.begin());
    if (!from_[place].empty())
      bad_data({"a policy twice", name, policy, "parts without doubles",
                "it is in " + from_[place] + ", too"});
    from_[place] = name;
    places.push_back(place);
  }
}

void ResultsJoin::add_variable(const Variable& variable, const std::vector<size_t>& places,
                               const std::string& name) {
  const auto known = variables_.find(variable.name);
  if (!has_policies(variable)) {
    if (known == variables_.end()) {
      variables_.emplace(variable.name, variable);
    } else if (!same(known->second, variable)) {
      bad_data({"belongs to another run", name, "other values of " + variable.name});
    }
    return;
  }
  if (known == variables_.end())
    variables_.emplace(variable.name, make_variable(declared(variable.name), shape_));
  Variable& whole = variables_.at(variable.name);
  if (whole.dims != variable.dims || whole.type() != variable.type())
    bad_data({"belongs to another run", name, variable.name + " of another shape"});
  const int64_t length = shape_.count({variable.dims.begin() + 1, variable.dims.end()});
  for (int64_t p = 0; p < std::ssize(places); ++p)
    copy_row(variable.values, p, whole.values, static_cast<int64_t>(places[p]), length);
}

void ResultsJoin::add_config(const Dataset& part, const std::vector<size_t>& places) {
  const auto config = ordered_json::parse(part.text_attribute("config"), nullptr, false);
  if (!config.is_object() || !config.contains("policies") || !config["policies"].is_array()) return;
  const ordered_json& policies = config["policies"];
  for (size_t p = 0; p < places.size() && p < policies.size(); ++p)
    configs_[places[p]] = policies[p].dump();
}

std::vector<std::string> ResultsJoin::missing() const {
  std::vector<std::string> names;
  for (size_t p = 0; p < policies_.size(); ++p)
    if (from_[p].empty()) names.push_back(policies_[p]);
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
    for (const std::string& text : configs_)
      if (!text.empty()) config["policies"].push_back(ordered_json::parse(text));
    whole.set_attribute("config", config.dump());
  }
  return whole;
}

Dataset one_policy(const Dataset& results, int64_t policy) {
  Dataset part;
  for (const Dimension& dimension : results.dimensions())
    part.add_dimension(dimension.name, dimension.name == "policy" ? 1 : dimension.size);
  for (const Variable& variable : results.variables()) {
    Variable copy{variable.name,      variable.dims,  variable.units,
                  variable.long_name, variable.flags, {}};
    if (has_policies(variable)) {
      const int64_t length = results.count({variable.dims.begin() + 1, variable.dims.end()});
      std::visit(
          [&](const auto& values) {
        const auto begin = values.begin() + policy * length;
        copy.values = std::remove_cvref_t<decltype(values)>(begin, begin + length);
          },
          variable.values);
    } else {
      copy.values = variable.values;
    }
    part.add(std::move(copy));
  }
  for (const Attribute& attribute : results.attributes())
    part.set_attribute(attribute.name, attribute.value);
  auto config = ordered_json::parse(results.text_attribute("config"), nullptr, false);
  if (config.is_object() && config.contains("policies") && config["policies"].is_array() &&
      static_cast<size_t>(policy) < config["policies"].size()) {
    config["policies"] = ordered_json::array({config["policies"][policy]});
    part.set_attribute("config", config.dump());
  }
  return part;
}

}  // namespace kvsim
