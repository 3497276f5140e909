#include <hdf5_hl.h>

#include "io/hdf5.hpp"
#include "io/results.hpp"
#include "io/temporary_file.hpp"

namespace kvsim {
namespace {

using h5::Handle;
namespace fs = std::filesystem;

/// Flags are the only variables worth compressing: values of measures are noise to gzip.
constexpr int64_t kLeastCompressed = 64 * 1024;
constexpr int64_t kLargestChunk = 1024 * 1024;
constexpr unsigned kGzipLevel = 2;

/// Checks what HDF5 answers: ids and status codes are negative on failure.
class Checker {
 public:
  explicit Checker(const std::string& file) : file_(file) {}
  template <class Answer>
  Answer operator()(Answer answer, const std::string& what) const {
    if (answer < 0) throw Error(Fault::failure, {"cannot write " + what, file_});
    return answer;
  }

 private:
  const std::string& file_;
};

hid_t number_type(VariableType type) {
  switch (type) {
    case VariableType::float64: return H5T_IEEE_F64LE;
    case VariableType::int32: return H5T_STD_I32LE;
    case VariableType::int64: return H5T_STD_I64LE;
    case VariableType::uint8: return H5T_STD_U8LE;
    case VariableType::text: break;
  }
  return H5I_INVALID_HID;
}

/// Value of what is missing; null: nothing of this type ever is.
const void* fill_of(VariableType type) {
  static constexpr double kReal = kUndefined;
  static constexpr uint8_t kFlag = 255;
  if (type == VariableType::float64) return &kReal;
  return type == VariableType::uint8 ? &kFlag : nullptr;
}

/// One value; or with `count` an array, as netCDF-C writes its own attributes.
void write_attribute(const Checker& check, hid_t object, const char* name, hid_t type,
                     const void* values, std::optional<hsize_t> count = {}) {
  const Handle space(
      check(count ? H5Screate_simple(1, &*count, nullptr) : H5Screate(H5S_SCALAR), name));
  const Handle attribute(
      check(H5Acreate2(object, name, type, space.get(), H5P_DEFAULT, H5P_DEFAULT), name));
  check(H5Awrite(attribute.get(), type, values), name);
}

void write_attribute(const Checker& check, hid_t object, const char* name, int64_t value) {
  write_attribute(check, object, name, H5T_STD_I64LE, &value);
}

void write_attribute(const Checker& check, hid_t object, const char* name, double value) {
  write_attribute(check, object, name, H5T_IEEE_F64LE, &value);
}

/// Names of files may have any bytes, results are UTF-8: what is none becomes U+FFFD.
void write_attribute(const Checker& check, hid_t object, const char* name,
                     const std::string& value) {
  const std::string valid = h5::repaired_utf8(value);
  const char* text = valid.c_str();
  write_attribute(check, object, name, h5::text_type().get(), &text);
}

Handle create_file(const Checker& check, const std::string& path) {
  const Handle creation(check(H5Pcreate(H5P_FILE_CREATE), "the file"));
  // netCDF keeps dimensions and variables in the order of creation and refuses to guess.
  const unsigned order = H5P_CRT_ORDER_TRACKED | H5P_CRT_ORDER_INDEXED;
  check(H5Pset_link_creation_order(creation.get(), order), "the file");
  check(H5Pset_attr_creation_order(creation.get(), order), "the file");
  check(H5Pset_obj_track_times(creation.get(), false), "the file");
  const Handle access = h5::unbuffered();
  check(H5Pset_libver_bounds(access.get(), H5F_LIBVER_V18, H5F_LIBVER_V18), "the file");
  return Handle(
      check(H5Fcreate(path.c_str(), H5F_ACC_TRUNC, creation.get(), access.get()), "the file"));
}

/// Chunks of whole trailing axes, as many as fit; gzip and shuffle.
void compress(const Checker& check, hid_t creation, const std::vector<hsize_t>& shape) {
  std::vector<hsize_t> chunk(shape.size(), 1);
  hsize_t size = 1;
  for (size_t axis = shape.size(); axis-- > 0;) {
    chunk[axis] = std::min<hsize_t>(shape[axis], static_cast<hsize_t>(kLargestChunk) / size);
    size *= chunk[axis];
    if (chunk[axis] < shape[axis]) break;
  }
  check(H5Pset_chunk(creation, static_cast<int>(chunk.size()), chunk.data()), "chunks");
  check(H5Pset_deflate(creation, kGzipLevel), "compression");
}

/// Properties of a variable's dataset: order of attributes, no times, fill value, compression.
Handle creation_properties(const Checker& check, const Variable& variable,
                           const std::vector<hsize_t>& shape) {
  Handle creation(check(H5Pcreate(H5P_DATASET_CREATE), variable.name));
  const unsigned order = H5P_CRT_ORDER_TRACKED | H5P_CRT_ORDER_INDEXED;
  check(H5Pset_attr_creation_order(creation.get(), order), variable.name);
  check(H5Pset_obj_track_times(creation.get(), false), variable.name);
  if (const void* const fill = fill_of(variable.type()))
    check(H5Pset_fill_value(creation.get(), number_type(variable.type()), fill), variable.name);
  if (variable.type() == VariableType::uint8) {
    hsize_t count = 1;
    for (const hsize_t size : shape) count *= size;
    if (count >= static_cast<hsize_t>(kLeastCompressed)) compress(check, creation.get(), shape);
  }
  return creation;
}

void write_values(const Checker& check, hid_t dataset, const Variable& variable) {
  if (const auto* texts = std::get_if<std::vector<std::string>>(&variable.values)) {
    std::vector<std::string> valid(texts->size());
    std::ranges::transform(*texts, valid.begin(), h5::repaired_utf8);
    std::vector<const char*> pointers;
    for (const std::string& text : valid) pointers.push_back(text.c_str());
    const Handle type = h5::text_type();
    check(H5Dwrite(dataset, type.get(), H5S_ALL, H5S_ALL, H5P_DEFAULT, pointers.data()),
          variable.name);
    return;
  }
  const void* data = std::visit(
      [](const auto& values) { return static_cast<const void*>(values.data()); }, variable.values);
  check(H5Dwrite(dataset, number_type(variable.type()), H5S_ALL, H5S_ALL, H5P_DEFAULT, data),
        variable.name);
}

/// `_FillValue` has the variable's own type; coordinates have none, since they are never missing.
void write_variable_attributes(const Checker& check, hid_t dataset, const Variable& variable) {
  const void* const fill = fill_of(variable.type());
  if (fill != nullptr && !variable.is_coordinate())
    write_attribute(check, dataset, "_FillValue", number_type(variable.type()), fill, 1);
  write_attribute(check, dataset, "long_name", variable.long_name);
  write_attribute(check, dataset, "units", variable.units);
  if (variable.flags.empty()) return;
  std::vector<uint8_t> values;
  std::string meanings;
  for (const FlagMeaning& flag : variable.flags) {
    values.push_back(flag.value);
    meanings += (meanings.empty() ? "" : " ") + flag.meaning;
  }
  write_attribute(check, dataset, "flag_values", H5T_STD_U8LE, values.data(), values.size());
  write_attribute(check, dataset, "flag_meanings", meanings);
}

Handle write_variable(const Checker& check, hid_t file, const Dataset& dataset,
                      const Variable& variable) {
  std::vector<hsize_t> shape;
  for (const std::string& dim : variable.dims)
    shape.push_back(static_cast<hsize_t>(dataset.size(dim)));
  const Handle space(check(H5Screate_simple(static_cast<int>(shape.size()), shape.data(), nullptr),
                           variable.name));
  const Handle creation = creation_properties(check, variable, shape);
  const Handle type = variable.type() == VariableType::text
                          ? h5::text_type()
                          : Handle(check(H5Tcopy(number_type(variable.type())), variable.name));
  Handle written(check(H5Dcreate2(file, variable.name.c_str(), type.get(), space.get(), H5P_DEFAULT,
                                  creation.get(), H5P_DEFAULT),
                       variable.name));
  write_values(check, written.get(), variable);
  write_variable_attributes(check, written.get(), variable);
  return written;
}

/// Turns the coordinate of dimension number `id` into a dimension scale as netCDF-C writes it.
void make_scale(const Checker& check, hid_t coordinate, const std::string& name, int id) {
  check(H5DSset_scale(coordinate, name.c_str()), name);
  const int32_t number = id;
  write_attribute(check, coordinate, "_Netcdf4Dimid", H5T_STD_I32LE, &number);
}

std::vector<Attribute> attributes_for(const Dataset& dataset, const std::string& target) {
  std::vector<Attribute> attributes = dataset.attributes();
  for (Attribute& attribute : attributes) {
    auto* trace = std::get_if<std::string>(&attribute.value);
    if (attribute.name != kTracePath || trace == nullptr) continue;
    const fs::path folder = fs::weakly_canonical(fs::absolute(target)).parent_path();
    *trace = fs::path(*trace).lexically_relative(folder);
  }
  return attributes;
}

}  // namespace

void write_results(const Dataset& dataset, const std::string& target) {
  h5::silence_errors();
  TemporaryFile temporary(target);
  const Checker check(target);
  {
    Handle file = create_file(check, temporary.path());
    for (const Attribute& attribute : attributes_for(dataset, target))
      std::visit(
          [&](const auto& value) {
        write_attribute(check, file.get(), attribute.name.c_str(), value);
          },
          attribute.value);
    std::vector<Handle> scales;
    for (size_t id = 0; id < dataset.dimensions().size(); ++id) {
      const std::string& name = dataset.dimensions()[id].name;
      scales.push_back(write_variable(check, file.get(), dataset, dataset.at(name)));
      make_scale(check, scales.back().get(), name, static_cast<int>(id));
    }
    for (const Variable& variable : dataset.variables()) {
      if (variable.is_coordinate()) continue;
      Handle written = write_variable(check, file.get(), dataset, variable);
      for (size_t axis = 0; axis < variable.dims.size(); ++axis) {
        size_t id = 0;
        while (dataset.dimensions()[id].name != variable.dims[axis]) ++id;
        check(H5DSattach_scale(written.get(), scales[id].get(), static_cast<unsigned>(axis)),
              variable.name);
      }
      check(written.close() ? 0 : -1, variable.name);
    }
    for (Handle& scale : scales) check(scale.close() ? 0 : -1, "a dimension");
    check(H5Fflush(file.get(), H5F_SCOPE_GLOBAL), "the file");
    check(file.close() ? 0 : -1, "the file");
  }
  temporary.commit();
}

}  // namespace kvsim
