#pragma once
#include <unordered_map>
#include <variant>

#include "sim/core/decimal.hpp"

namespace kvsim {

struct Dimension {
  std::string name;
  int64_t size = 0;
};

/// One value of a variable that is a flag, e.g. 2 = "merged".
struct FlagMeaning {
  uint8_t value = 0;
  std::string meaning;  ///< one word, or words joined by `_`
};

/// The alternatives are the types a results file may hold, in the order of VariableType.
using VariableValues = std::variant<std::vector<double>, std::vector<int32_t>, std::vector<int64_t>,
                                    std::vector<uint8_t>, std::vector<std::string>>;
enum class VariableType { float64, int32, int64, uint8, text };

/// An array over named dimensions, row-major. A variable named like its only dimension is the
/// coordinate of that dimension.
struct Variable {
  std::string name;
  std::vector<std::string> dims;
  std::string units;
  std::string long_name;
  std::vector<FlagMeaning> flags;
  VariableValues values;

  VariableType type() const { return static_cast<VariableType>(values.index()); }
  bool is_coordinate() const { return dims.size() == 1 && dims[0] == name; }
  size_t count() const {
    return std::visit([](const auto& all) { return all.size(); }, values);
  }
  /// Text of one value.
  std::string label(size_t index) const {
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
};

using AttributeValue = std::variant<std::string, int64_t, double>;
struct Attribute {
  std::string name;
  AttributeValue value;
};

/// Attribute with the path of the trace: absolute in a Dataset; in a file relative to its folder,
/// so that both can be moved together and no file names folders of the machine it was made on.
inline constexpr const char* kTracePath = "trace_path";

/// Contents of one results file: dimensions, variables over them, and attributes of the run. Plain
/// data; writing, reading and printing are elsewhere (io/).
class Dataset {
 public:
  void add_dimension(std::string name, int64_t size) {
    assert(!has_dimension(name));
    dimensions_.push_back({std::move(name), size});
  }
  /// Adds a variable; its values must fill its dimensions, which must exist.
  Variable& add(Variable variable) {
    if (variable.count() != static_cast<size_t>(count(variable.dims)))
      throw std::logic_error("values of " + variable.name + " do not fill it");
    if (!index_.emplace(variable.name, variables_.size()).second)
      throw std::logic_error("variable " + variable.name + " exists already");
    return variables_.emplace_back(std::move(variable));
  }
  /// Replaces one of the same name.
  void set_attribute(std::string name, AttributeValue value) {
    const auto known = std::ranges::find(attributes_, name, &Attribute::name);
    if (known != attributes_.end())
      known->value = std::move(value);
    else
      attributes_.push_back({std::move(name), std::move(value)});
  }

  const std::vector<Dimension>& dimensions() const { return dimensions_; }
  const std::vector<Variable>& variables() const { return variables_; }
  const std::vector<Attribute>& attributes() const { return attributes_; }

  bool has_dimension(std::string_view name) const {
    return std::ranges::count(dimensions_, name, &Dimension::name) > 0;
  }
  /// Of a dimension that exists.
  int64_t size(std::string_view dimension) const {
    for (const Dimension& known : dimensions_)
      if (known.name == dimension) return known.size;
    throw std::logic_error("no dimension " + std::string(dimension));
  }
  /// Number of values of a variable over these dimensions.
  int64_t count(const std::vector<std::string>& dims) const {
    int64_t total = 1;
    for (const std::string& dim : dims) total *= size(dim);
    return total;
  }

  bool has(std::string_view variable) const { return find(variable) != nullptr; }
  const Variable* find(std::string_view variable) const {
    const auto found = index_.find(std::string(variable));
    return found == index_.end() ? nullptr : &variables_[found->second];
  }
  Variable& at(std::string_view variable) {
    return const_cast<Variable&>(std::as_const(*this).at(variable));
  }
  const Variable& at(std::string_view variable) const {
    const Variable* found = find(variable);
    if (found == nullptr) throw std::logic_error("no variable " + std::string(variable));
    return *found;
  }
  /// All values of a variable of that type.
  template <class T>
  const std::vector<T>& values(std::string_view variable) const {
    return std::get<std::vector<T>>(at(variable).values);
  }
  const std::vector<std::string>& texts(std::string_view variable) const {
    return values<std::string>(variable);
  }
  const AttributeValue* attribute(std::string_view name) const {
    for (const Attribute& known : attributes_)
      if (known.name == name) return &known.value;
    return nullptr;
  }
  /// Of this type; `otherwise` where there is none, or one of another type.
  template <class T>
  T attribute_or(std::string_view name, T otherwise) const {
    const AttributeValue* found = attribute(name);
    const T* value = found == nullptr ? nullptr : std::get_if<T>(found);
    return value == nullptr ? otherwise : *value;
  }
  /// Empty where there is none.
  std::string text_attribute(std::string_view name) const {
    return attribute_or<std::string>(name, "");
  }

  /// The values of a variable at fixed indices of its leading dimensions: one row over the rest.
  template <class T = double>
  std::span<T> row(std::string_view variable, std::initializer_list<int64_t> leading) {
    Variable& found = at(variable);
    const auto [offset, length] = locate(found, leading);
    return std::span<T>(std::get<std::vector<T>>(found.values)).subspan(offset, length);
  }
  template <class T = double>
  std::span<const T> row(std::string_view variable, std::initializer_list<int64_t> leading) const {
    const Variable& found = at(variable);
    const auto [offset, length] = locate(found, leading);
    return std::span<const T>(std::get<std::vector<T>>(found.values)).subspan(offset, length);
  }

 private:
  struct Place {
    size_t offset = 0;
    size_t length = 0;
  };
  Place locate(const Variable& variable, std::initializer_list<int64_t> leading) const {
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

  std::vector<Dimension> dimensions_;
  std::vector<Variable> variables_;
  std::vector<Attribute> attributes_;
  std::unordered_map<std::string, size_t> index_;  ///< of variables_, by name
};

}  // namespace kvsim
