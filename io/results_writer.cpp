#include <hdf5_hl.h>

#include "io/hdf5_output.hpp"
#include "io/results.hpp"

namespace kvsim {
namespace {

using h5::Handle;
namespace fs = std::filesystem;

/// Flags are the only variables worth compressing: values of measures are noise to gzip.
constexpr int64_t kLeastCompressed = 64 * 1024;
constexpr int64_t kLargestChunk = 1024 * 1024;
constexpr unsigned kGzipLevel = 2;

/// netCDF keeps dimensions and variables in the order of creation and refuses to guess.
constexpr unsigned kInOrder = H5P_CRT_ORDER_TRACKED | H5P_CRT_ORDER_INDEXED;

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

h5::OutputFile create_file(const std::string& target) {
  const Handle creation(H5Pcreate(H5P_FILE_CREATE)), access = h5::unbuffered();
  H5Pset_link_creation_order(creation.get(), kInOrder);
  H5Pset_attr_creation_order(creation.get(), kInOrder);
  H5Pset_obj_track_times(creation.get(), false);
  H5Pset_libver_bounds(access.get(), H5F_LIBVER_V18, H5F_LIBVER_V18);
  return h5::OutputFile(target, creation.get(), access);
}

/// Chunks of whole trailing axes, as many as fit; gzip.
void compress(hid_t creation, const h5::Shape& shape) {
  std::vector<hsize_t> chunk(shape.size(), 1);
  int64_t size = 1;
  for (size_t axis = shape.size(); axis-- > 0;) {
    const int64_t length = std::min(shape[axis], kLargestChunk / size);
    chunk[axis] = static_cast<hsize_t>(length);
    size *= length;
    if (length < shape[axis]) break;
  }
  H5Pset_chunk(creation, static_cast<int>(chunk.size()), chunk.data());
  H5Pset_deflate(creation, kGzipLevel);
}

/// Properties of a variable's dataset: order of attributes, no times, fill value, compression.
Handle creation_properties(const Variable& variable, const h5::Shape& shape, int64_t count) {
  Handle creation(H5Pcreate(H5P_DATASET_CREATE));
  H5Pset_attr_creation_order(creation.get(), kInOrder);
  H5Pset_obj_track_times(creation.get(), false);
  if (const void* const fill = fill_of(variable.type()))
    H5Pset_fill_value(creation.get(), number_type(variable.type()), fill);
  if (variable.type() == VariableType::uint8 && count >= kLeastCompressed)
    compress(creation.get(), shape);
  return creation;
}

/// `_FillValue` has the variable's own type, in an array, as netCDF-C writes its own attributes;
/// coordinates have none, since they are never missing.
void write_variable(h5::OutputFile& file, const Dataset& dataset, const Variable& variable) {
  const std::string& name = variable.name;
  h5::Shape shape;
  for (const std::string& dim : variable.dims) shape.push_back(dataset.size(dim));
  const Handle creation = creation_properties(variable, shape, dataset.count(variable.dims));
  if (const auto* texts = std::get_if<std::vector<std::string>>(&variable.values))
    file.write_texts(name, shape, *texts, creation.get());
  else
    file.write(name, number_type(variable.type()), shape,
               std::visit([](const auto& values) -> const void* { return values.data(); },
                          variable.values),
               creation.get());
  const void* const fill = fill_of(variable.type());
  if (fill != nullptr && !variable.is_coordinate())
    file.attribute(name, "_FillValue", number_type(variable.type()), fill, 1);
  file.attribute(name, "long_name", variable.long_name);
  file.attribute(name, "units", variable.units);
  if (variable.flags.empty()) return;
  std::vector<uint8_t> values;
  std::string meanings;
  for (const FlagMeaning& flag : variable.flags) {
    values.push_back(flag.value);
    meanings += (meanings.empty() ? "" : " ") + flag.meaning;
  }
  file.attribute(name, "flag_values", H5T_STD_U8LE, values.data(), values.size());
  file.attribute(name, "flag_meanings", meanings);
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

/// Dimensions are scales as netCDF-C writes them.
void write_results(const Dataset& dataset, const std::string& target) {
  h5::OutputFile file = create_file(target);
  for (const Attribute& attribute : attributes_for(dataset, target))
    std::visit([&](const auto& value) { file.attribute("/", attribute.name.c_str(), value); },
               attribute.value);
  int32_t id = 0;
  for (const Dimension& dimension : dataset.dimensions()) {
    write_variable(file, dataset, dataset.at(dimension.name));
    file.check(H5DSset_scale(file.open(dimension.name).get(), dimension.name.c_str()) >= 0);
    file.attribute(dimension.name, "_Netcdf4Dimid", H5T_STD_I32LE, &id);
    ++id;
  }
  for (const Variable& variable : dataset.variables()) {
    if (variable.is_coordinate()) continue;
    write_variable(file, dataset, variable);
    const Handle written = file.open(variable.name);
    for (unsigned axis = 0; axis < variable.dims.size(); ++axis)
      file.check(H5DSattach_scale(written.get(), file.open(variable.dims[axis]).get(), axis) >= 0);
  }
  file.commit();
}

}  // namespace kvsim
