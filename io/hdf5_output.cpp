#include "io/hdf5.hpp"

namespace kvsim::h5 {

OutputFile::OutputFile(const std::string& path, hid_t creation, const Handle& access)
    : target_(path) {
  silence_errors();
  file_ = Handle(H5Fcreate(target_.path().c_str(), H5F_ACC_TRUNC, creation, access.get()));
  links_ = Handle(H5Pcreate(H5P_LINK_CREATE));
  plain_ = Handle(H5Pcreate(H5P_DATASET_CREATE));
  check(file_.valid() && H5Pset_create_intermediate_group(links_.get(), 1) >= 0 &&
        H5Pset_obj_track_times(plain_.get(), false) >= 0);
}

void OutputFile::check(bool good) const {
  if (!good)
    throw Error(
        Fault::failure,
        {.what = "cannot be written", .where = target_.target(), .hint = "is the disk full?"});
}

Handle OutputFile::open(const std::string& object) const {
  return Handle(H5Oopen(file_.get(), object.c_str(), H5P_DEFAULT));
}

void OutputFile::attribute(const std::string& object, const char* name, hid_t type,
                           const void* values, std::optional<hsize_t> count) {
  const Handle owner = open(object);
  const Handle space(count ? H5Screate_simple(1, &*count, nullptr) : H5Screate(H5S_SCALAR));
  const Handle attribute(
      H5Acreate2(owner.get(), name, type, space.get(), H5P_DEFAULT, H5P_DEFAULT));
  check(attribute.valid() && H5Awrite(attribute.get(), type, values) >= 0);
}

void OutputFile::attribute(const std::string& object, const char* name, int64_t value) {
  attribute(object, name, H5T_STD_I64LE, &value);
}

void OutputFile::attribute(const std::string& object, const char* name, double value) {
  attribute(object, name, H5T_IEEE_F64LE, &value);
}

void OutputFile::attribute(const std::string& object, const char* name, const std::string& value) {
  const std::string valid = repaired_utf8(value);
  const char* text = valid.c_str();
  attribute(object, name, text_type().get(), &text);
}

void OutputFile::write(const std::string& object, hid_t type, const Shape& shape, const void* data,
                       hid_t creation, const Handle& transfer) {
  const std::vector<hsize_t> lengths(shape.begin(), shape.end());
  const Handle space(H5Screate_simple(static_cast<int>(lengths.size()), lengths.data(), nullptr));
  Handle dataset(H5Dcreate2(file_.get(), object.c_str(), type, space.get(), links_.get(),
                            creation == H5P_DEFAULT ? plain_.get() : creation, H5P_DEFAULT));
  check(dataset.valid() &&
        H5Dwrite(dataset.get(), type, H5S_ALL, H5S_ALL, transfer.get(), data) >= 0 &&
        dataset.close());
}

void OutputFile::write(const std::string& object, hid_t type, const Shape& shape, const void* data,
                       hid_t creation) {
  write(object, type, shape, data, creation, no_conversion());
}

void OutputFile::write_texts(const std::string& object, const Shape& shape,
                             const std::vector<std::string>& texts, hid_t creation) {
  std::vector<std::string> valid(texts.size());
  std::ranges::transform(texts, valid.begin(), repaired_utf8);
  std::vector<const char*> pointers;
  for (const std::string& text : valid) pointers.push_back(text.c_str());
  write(object, text_type().get(), shape, pointers.data(), creation,
        Handle(H5Pcreate(H5P_DATASET_XFER)));
}

void OutputFile::commit() {
  check(H5Fflush(file_.get(), H5F_SCOPE_GLOBAL) >= 0 && file_.close());
  target_.commit();
}

}  // namespace kvsim::h5
