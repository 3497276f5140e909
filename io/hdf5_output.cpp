#include "io/hdf5_output.hpp"

#include "sim/core/error.hpp"

namespace kvsim::h5 {
namespace {

Handle text_type() {
  Handle type(H5Tcopy(H5T_C_S1));
  H5Tset_size(type.get(), H5T_VARIABLE);
  H5Tset_cset(type.get(), H5T_CSET_UTF8);
  return type;
}

}  // namespace

OutputFile::OutputFile(const std::string& path) : target_(path) {
  silence_errors();
  file_ = Handle(H5Fcreate(target_.path().c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, unbuffered().get()));
  links_ = Handle(H5Pcreate(H5P_LINK_CREATE));
  check(file_.valid() && H5Pset_create_intermediate_group(links_.get(), 1) >= 0);
}

void OutputFile::check(bool good) const {
  if (!good)
    throw Error(
        Fault::failure,
        {.what = "cannot be written", .where = target_.target(), .hint = "is the disk full?"});
}

void OutputFile::write_attribute(const std::string& object, const char* name, hid_t type,
                                 const void* value) {
  const Handle owner(H5Oopen(file_.get(), object.c_str(), H5P_DEFAULT));
  const Handle space(H5Screate(H5S_SCALAR));
  const Handle attribute(
      H5Acreate2(owner.get(), name, type, space.get(), H5P_DEFAULT, H5P_DEFAULT));
  check(attribute.valid() && H5Awrite(attribute.get(), type, value) >= 0);
}

void OutputFile::attribute(const std::string& object, const char* name, int64_t value) {
  write_attribute(object, name, H5T_STD_I64LE, &value);
}

void OutputFile::attribute(const std::string& object, const char* name, double value) {
  write_attribute(object, name, H5T_IEEE_F64LE, &value);
}

void OutputFile::attribute(const std::string& object, const char* name, const std::string& value) {
  const char* text = value.c_str();
  write_attribute(object, name, text_type().get(), &text);
}

Handle OutputFile::create(const std::string& object, hid_t type, const Shape& shape) {
  const std::vector<hsize_t> lengths(shape.begin(), shape.end());
  const Handle space(H5Screate_simple(static_cast<int>(lengths.size()), lengths.data(), nullptr));
  const Handle creation(H5Pcreate(H5P_DATASET_CREATE));
  H5Pset_obj_track_times(creation.get(), false);  // the same data give the same bytes
  Handle dataset(H5Dcreate2(file_.get(), object.c_str(), type, space.get(), links_.get(),
                            creation.get(), H5P_DEFAULT));
  check(space.valid() && dataset.valid());
  return dataset;
}

void OutputFile::write(const std::string& object, hid_t type, const Shape& shape,
                       const void* data) {
  Handle dataset = create(object, type, shape);
  check(H5Dwrite(dataset.get(), type, H5S_ALL, H5S_ALL, no_conversion().get(), data) >= 0 &&
        dataset.close());
}

void OutputFile::write_texts(const std::string& object, const std::vector<std::string>& texts) {
  const Handle type = text_type();
  Handle dataset = create(object, type.get(), {static_cast<int64_t>(texts.size())});
  std::vector<const char*> pointers;
  for (const std::string& text : texts) pointers.push_back(text.c_str());
  check(H5Dwrite(dataset.get(), type.get(), H5S_ALL, H5S_ALL, H5P_DEFAULT, pointers.data()) >= 0 &&
        dataset.close());
}

void OutputFile::commit() {
  check(H5Fflush(file_.get(), H5F_SCOPE_GLOBAL) >= 0 && file_.close());
  target_.commit();
}

}  // namespace kvsim::h5
