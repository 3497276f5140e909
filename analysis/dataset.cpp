#include "analysis/dataset.hpp"

#include "sim/core/decimal.hpp"

namespace kvsim {

size_t Variable::count() const {
  return std::visit([](const auto& all) { return all.size(); }, values);
}

std::string Variable::label(size_t index) const {
  return std::visit(
      [index](const auto& all) -> std::string {
        using Value = std::decay_t<decltype(all[0])>;
        if constexpr (std::is_same_v<Value, std::string>)
          return all[index];
        else if constexpr (std::is_same_v<Value, double>)
          return shortest(all[index]);
        else
          return std::to_string(all[index]);
      },
      values);
}

void Dataset::add_dimension(std::string name, int64_t size) {
  assert(!has_dimension(name));
  dimensions_.push_back({std::move(name), size});
}

bool Dataset::has_dimension(std::string_view name) const {
  for (const Dimension& dimension : dimensions_)
    if (dimension.name == name) return true;
  return false;
}

int64_t Dataset::size(std::string_view dimension) const {
  for (const Dimension& known : dimensions_)
    if (known.name == dimension) return known.size;
  throw std::logic_error("no dimension " + std::string(dimension));
}

int64_t Dataset::count(const std::vector<std::string>& dims) const {
  int64_t total = 1;
  for (const std::string& dim : dims) total *= size(dim);
  return total;
}

Variable& Dataset::add(Variable variable) {
  if (variable.count() != static_cast<size_t>(count(variable.dims)))
    throw std::logic_error("values of " + variable.name + " do not fill it");
  if (!index_.emplace(variable.name, variables_.size()).second)
    throw std::logic_error("variable " + variable.name + " exists already");
  return variables_.emplace_back(std::move(variable));
}

void Dataset::set_attribute(std::string name, AttributeValue value) {
  for (Attribute& attribute : attributes_)
    if (attribute.name == name) {
      attribute.value = std::move(value);
      return;
    }
  attributes_.push_back({std::move(name), std::move(value)});
}

const Variable* Dataset::find(std::string_view variable) const {
  const auto found = index_.find(std::string(variable));
  return found == index_.end() ? nullptr : &variables_[found->second];
}

const Variable& Dataset::at(std::string_view variable) const {
  const Variable* found = find(variable);
  if (found == nullptr) throw std::logic_error("no variable " + std::string(variable));
  return *found;
}

Variable& Dataset::at(std::string_view variable) {
  return const_cast<Variable&>(std::as_const(*this).at(variable));
}

const AttributeValue* Dataset::attribute(std::string_view name) const {
  for (const Attribute& known : attributes_)
    if (known.name == name) return &known.value;
  return nullptr;
}

Dataset::Place Dataset::locate(const Variable& variable,
                               std::initializer_list<int64_t> leading) const {
  assert(leading.size() <= variable.dims.size());
  size_t offset = 0;
  size_t length = 1;
  size_t axis = 0;
  for (const int64_t index : leading) {
    const auto size = static_cast<size_t>(this->size(variable.dims[axis++]));
    assert(index >= 0 && static_cast<size_t>(index) < size);
    offset = offset * size + static_cast<size_t>(index);
  }
  for (; axis < variable.dims.size(); ++axis)
    length *= static_cast<size_t>(this->size(variable.dims[axis]));
  return {offset * length, length};
}

}  // namespace kvsim
