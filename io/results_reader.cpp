#include "io/crash_guard.hpp"
#include "io/hdf5.hpp"
#include "io/results.hpp"

namespace kvsim {
namespace {

using h5::Handle;
namespace fs = std::filesystem;

template <class Info>
herr_t collect(hid_t, const char* name, const Info*, void* names) {
  static_cast<std::vector<std::string>*>(names)->push_back(name);
  return 0;
}

void refuse_trace(const h5::InputFile& file) {
  if (file.text_attribute("/", "format") != "kvtrace") return;
  bad_data({.what = "a trace stands where results are expected",
            .where = file.path(),
            .expected = std::string("a ") + kResultsFile,
            .hint = "kvsim replay makes results of a trace"});
}

class Reader {
 public:
  explicit Reader(const std::string& path) : file_(path, kResultsFile) {}

  Dataset read() {
    refuse_trace(file_);
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

Dataset read_results(const std::string& path) {
  Dataset found = Reader(path).read();
  if (const std::string relative = found.text_attribute(kTracePath); !relative.empty()) {
    const fs::path folder = fs::canonical(path).parent_path();
    found.set_attribute(kTracePath, (folder / relative).lexically_normal().string());
  }
  return found;
}

}  // namespace kvsim
