#include <hdf5_hl.h>

#include "io/crash_guard.hpp"
#include "io/hdf5.hpp"
#include "io/side_files.hpp"

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

template <class Info>
herr_t collect(hid_t, const char* name, const Info*, void* names) {
  static_cast<std::vector<std::string>*>(names)->push_back(name);
  return 0;
}

class Reader {
 public:
  explicit Reader(const std::string& path) : file_(path, kResultsFile) {}

  Dataset read() {
    if (file_.text_attribute("/", "format") == "kvtrace")
      bad_data({.what = "a trace stands where results are expected",
                .where = file_.path(),
                .expected = std::string("a ") + kResultsFile,
                .hint = "kvsim replay makes results of a trace"});
    const std::vector<std::string> names = links();
    for (const std::string& name : names) {
      if (!is_scale(name)) continue;
      const h5::InputDataset found = file_.dataset(name);
      if (found.shape().size() != 1) found.fail("wrong rank", h5::shape_text(found.shape()), "1");
      dataset_.add_dimension(name, found.shape()[0]);
      scales_.emplace(file_.address(name), name);
    }
    if (dataset_.dimensions().empty())
      file_.fail("/", "not a results file", "no dimensions", std::string("a ") + kResultsFile);
    for (const std::string& name : names) read_variable(name);
    read_attributes();
    return std::move(dataset_);
  }

 private:
  std::vector<std::string> links() const {
    const ReadingGuard guard(file_.path());
    std::vector<std::string> names;
    if (H5Literate(file_.id(), H5_INDEX_CRT_ORDER, H5_ITER_INC, nullptr, collect<H5L_info_t>,
                   &names) < 0)
      file_.fail("/", "not a results file", "links without an order of creation",
                 std::string("a ") + kResultsFile);
    return names;
  }

  bool is_scale(const std::string& name) const {
    return file_.text_attribute(name, "CLASS") == "DIMENSION_SCALE";
  }

  void read_variable(const std::string& name) {
    const ReadingGuard guard(file_.path());
    const h5::InputDataset found = file_.dataset(name);
    Variable variable;
    variable.name = name;
    if (is_scale(name))
      variable.dims = {name};
    else
      variable.dims = dimensions(found);
    variable.units = file_.text_attribute(name, "units").value_or("");
    variable.long_name = file_.text_attribute(name, "long_name").value_or("");
    read_values(found, variable);
    dataset_.add(std::move(variable));
  }

  std::vector<std::string> dimensions(const h5::InputDataset& found) const {
    std::vector<uint64_t> scales = file_.scale_addresses(found.name());
    scales.resize(found.shape().size());
    std::vector<std::string> names;
    for (size_t axis = 0; axis < scales.size(); ++axis) {
      const auto scale = scales_.find(scales[axis]);
      const std::string name = scale == scales_.end() ? "" : scale->second;
      if (!dataset_.has_dimension(name) || dataset_.size(name) != found.shape()[axis])
        found.fail("wrong dimension", name.empty() ? "an axis without one" : name,
                   "a dimension of length " + std::to_string(found.shape()[axis]));
      names.push_back(name);
    }
    return names;
  }

  static void read_values(const h5::InputDataset& found, Variable& variable) {
    const hid_t type = found.type();
    const auto integers = [&](auto kind) {
      const std::vector<int64_t> wide = found.read_integers();
      variable.values = std::vector<decltype(kind)>(wide.begin(), wide.end());
    };
    if (H5Tget_class(type) == H5T_STRING) {
      variable.values = found.read_text();
    } else if (H5Tequal(type, H5T_IEEE_F64LE) > 0) {
      variable.values = found.read_doubles();
    } else if (H5Tequal(type, H5T_STD_I32LE) > 0) {
      integers(int32_t{});
    } else if (H5Tequal(type, H5T_STD_I64LE) > 0) {
      variable.values = found.read_integers();
    } else if (H5Tequal(type, H5T_STD_U8LE) > 0) {
      integers(uint8_t{});
    } else {
      found.fail("wrong type", h5::type_text(type), "float64, int32, int64, uint8 or string");
    }
  }

  void read_attributes() {
    const ReadingGuard guard(file_.path());
    std::vector<std::string> names;
    H5Aiterate2(file_.id(), H5_INDEX_CRT_ORDER, H5_ITER_INC, nullptr, collect<H5A_info_t>, &names);
    for (const std::string& name : names) {
      const Handle attribute(
          H5Aopen_by_name(file_.id(), "/", name.c_str(), H5P_DEFAULT, H5P_DEFAULT));
      const Handle space(H5Aget_space(attribute.get()));
      if (H5Sget_simple_extent_npoints(space.get()) != 1) continue;  // lists: no command reads one
      const Handle type(H5Aget_type(attribute.get()));
      switch (H5Tget_class(type.get())) {
        case H5T_STRING:
          dataset_.set_attribute(name, file_.text_attribute("/", name.c_str()).value_or(""));
          break;
        case H5T_INTEGER:
          dataset_.set_attribute(name, file_.integer_attribute("/", name.c_str()).value_or(0));
          break;
        case H5T_FLOAT:
          dataset_.set_attribute(name, file_.real_attribute("/", name.c_str()).value_or(0));
          break;
        default: break;  // nothing that kvsim writes
      }
    }
  }

  h5::InputFile file_;
  Dataset dataset_;
  std::map<uint64_t, std::string> scales_;  ///< names of the dimensions by address
};

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

Dataset read_results(const std::string& path) {
  Dataset found = Reader(path).read();
  if (const std::string relative = found.text_attribute(kTracePath); !relative.empty()) {
    const fs::path folder = fs::canonical(path).parent_path();
    found.set_attribute(kTracePath, (folder / relative).lexically_normal().string());
  }
  return found;
}

}  // namespace kvsim
