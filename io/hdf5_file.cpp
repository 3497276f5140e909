#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "io/crash_guard.hpp"
#include "io/hdf5.hpp"

namespace kvsim::h5 {
namespace {

/// When writing fails, e.g. on a full disk, HDF5 cannot close the file, tries again when the
/// program ends, and crashes. Everything is closed by its Handle; nothing is left to be done then.
/// To be said before the library is used at all, hence here.
[[maybe_unused]] const herr_t no_cleanup_at_exit = H5dont_atexit();

/// HDF5 calls this before it would follow a link into another file.
herr_t refuse_external(const char*, const char*, const char*, const char*, unsigned*, hid_t,
                       void*) {
  return -1;
}

herr_t collect_name(hid_t, const char* name, const H5L_info_t*, void* names) noexcept {
  try {
    static_cast<std::vector<std::string>*>(names)->emplace_back(name);
    return 0;
  } catch (...) {
    return -1;
  }
}

bool is_root(const std::string& object) { return object.empty() || object == "/"; }

/// Does another process hold the file open for writing? HDF5's writers lock what they write.
bool locked(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return false;
  const bool held = flock(file, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  ::close(file);
  return held;
}

/// The reasons that the library gave when it last failed, from the first to the last.
struct Reasons {
  bool truncated = false;
  bool being_written = false;
  bool no_locks = false;
};

herr_t collect_reason(unsigned, const H5E_error2_t* error, void* reasons) {
  auto& found = *static_cast<Reasons*>(reasons);
  const std::string_view said = error->desc != nullptr ? error->desc : "";
  found.truncated = found.truncated || error->min_num == H5E_TRUNCATED;
  found.being_written = found.being_written || said.find("already open for") != said.npos;
  found.no_locks = found.no_locks || said.find("unable to lock file") != said.npos;
  return 0;
}

constexpr int64_t kLeastHeader =
    96;  ///< bytes of the first superblock, the root group's entry in it

/// Why H5Fopen has just failed on a file of `size` bytes that can be read.
Error::Parts why_not_opened(const std::string& path, int64_t size, const char* expected) {
  Reasons reasons;
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, collect_reason, &reasons);
  const std::string complete = std::string("a complete ") + expected + " (HDF5)";
  const std::string bytes = std::to_string(size) + " bytes";
  if (locked(path))
    return {.what = "locked: another program has it open for writing",
            .where = path,
            .expected = std::string("a ") + expected + " that nobody is writing",
            .hint = "wait until it is closed"};
  if (reasons.no_locks)
    return {.what = "its file system cannot lock files",
            .where = path,
            .hint = "HDF5_USE_FILE_LOCKING=FALSE in the environment reads without locks"};
  if (size == 0) return {"an empty file", path, "", complete};
  if (reasons.being_written)
    return {.what = "its writer has not closed it",
            .where = path,
            .expected = complete,
            .hint = "wait for the writer; if it was killed, write the file again"};
  const bool signature = H5Fis_hdf5(path.c_str()) > 0;
  if (reasons.truncated || (signature && size < kLeastHeader))
    return {"truncated", path, bytes, complete};
  if (signature) return {"damaged: the HDF5 library cannot open it", path, bytes, complete};
  return {"not an HDF5 file", path, bytes, complete};
}

}  // namespace

std::string attribute_place(const std::string& object, const std::string& name) {
  return (is_root(object) ? std::string() : object + " ") + "attribute " + name;
}

Handle::~Handle() { close(); }

bool Handle::close() {
  const hid_t id = std::exchange(id_, H5I_INVALID_HID);
  if (id < 0) return true;
  switch (H5Iget_type(id)) {
    case H5I_FILE: return H5Fclose(id) >= 0;
    case H5I_GROUP:
    case H5I_DATASET: return H5Oclose(id) >= 0;
    case H5I_DATATYPE: return H5Tclose(id) >= 0;
    case H5I_DATASPACE: return H5Sclose(id) >= 0;
    case H5I_ATTR: return H5Aclose(id) >= 0;
    default: return H5Pclose(id) >= 0;
  }
}

Handle unbuffered() {
  Handle access(H5Pcreate(H5P_FILE_ACCESS));
  H5Pset_sieve_buf_size(access.get(), 0);
  H5Pset_cache(access.get(), 0, 1, 0, 1.0);  // of chunks
  return access;
}

void silence_errors() { H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr); }

InputFile::InputFile(const std::string& path, const char* expected) : path_(path) {
  const ReadingGuard guard(path_);
  silence_errors();
  struct stat status {};
  if (stat(path.c_str(), &status) != 0)
    bad_data({errno == ENOENT ? "no such file" : std::strerror(errno), path});
  if (!S_ISREG(status.st_mode))  // a pipe would block, a device could do anything
    bad_data({"not a regular file", path});
  if (access(path.c_str(), R_OK) != 0) bad_data({std::strerror(errno), path});
  size_ = status.st_size;
  const Handle properties(H5Pcreate(H5P_FILE_ACCESS));
  H5Pset_cache(properties.get(), 0, 1, 0, 1.0);  // no chunk cache: every chunk is read once
  file_ = Handle(H5Fopen(path.c_str(), H5F_ACC_RDONLY, properties.get()));
  if (!file_.valid()) bad_data(why_not_opened(path, size_, expected));
  const Handle driver(H5Fget_access_plist(file_.get()));
  void* descriptor = nullptr;
  if (H5Pget_driver(driver.get()) == H5FD_SEC2 &&
      H5Fget_vfd_handle(file_.get(), H5P_DEFAULT, &descriptor) >= 0)
    descriptor_ = *static_cast<const int*>(descriptor);
  access_ = Handle(H5Pcreate(H5P_LINK_ACCESS));
  H5Pset_elink_cb(access_.get(), refuse_external, nullptr);
}

void InputFile::fail(const std::string& object, std::string what, std::string found,
                     std::string expected, std::string hint) const {
  bad_data({std::move(what), is_root(object) ? path_ : path_ + ": " + object, std::move(found),
            std::move(expected), std::move(hint)});
}

bool InputFile::exists(const std::string& object) const {
  const ReadingGuard guard(path_);
  if (is_root(object)) return true;
  // Link by link: HDF5 itself would follow a link into another file.
  for (size_t slash = object.find('/');; slash = object.find('/', slash + 1)) {
    const std::string part = object.substr(0, slash);
    const htri_t there = H5Lexists(file_.get(), part.c_str(), access_.get());
    if (there < 0) fail(part, "cannot be read", "a damaged group above it", "a readable group");
    if (there == 0) return false;
    H5L_info_t link;
    if (H5Lget_info(file_.get(), part.c_str(), &link, access_.get()) < 0)
      fail(part, "cannot be read", "a damaged link", "an object of this file");
    if (link.type == H5L_TYPE_EXTERNAL)
      fail(part, "not allowed", "a link to another file", "an object of this file");
    if (H5Oexists_by_name(file_.get(), part.c_str(), access_.get()) <= 0)
      fail(part, "cannot be read", "a link that leads nowhere", "an object of this file");
    if (slash == std::string::npos) return true;
  }
}

Handle InputFile::open(const std::string& object) const {
  const ReadingGuard guard(path_);
  if (!exists(object)) fail(object, "missing");
  Handle id(H5Oopen(file_.get(), is_root(object) ? "/" : object.c_str(), access_.get()));
  if (!id.valid()) fail(object, "cannot be read", "a damaged object", "a readable one");
  return id;
}

std::vector<std::string> InputFile::children(const std::string& group) const {
  const ReadingGuard guard(path_);
  const Handle id = open(group);
  if (H5Iget_type(id.get()) != H5I_GROUP)
    fail(group, "wrong kind of object", "no group", "a group");
  std::vector<std::string> names;
  hsize_t from = 0;
  if (H5Literate(id.get(), H5_INDEX_NAME, H5_ITER_INC, &from, collect_name, &names) < 0)
    fail(group, "cannot be read", "a damaged group", "a readable one");
  std::sort(names.begin(), names.end());
  return names;
}

InputDataset InputFile::dataset(const std::string& object) const {
  const ReadingGuard guard(path_);
  Handle id = open(object);
  if (H5Iget_type(id.get()) != H5I_DATASET)
    fail(object, "wrong kind of object", "no dataset", "a dataset");
  return InputDataset(*this, object, std::move(id));
}

Handle InputFile::open_attribute(const std::string& object, const char* name, bool list) const {
  const ReadingGuard guard(path_);
  const Handle owner = open(object);
  const htri_t there = H5Aexists(owner.get(), name);
  if (there == 0) return Handle();
  Handle attribute(there > 0 ? H5Aopen(owner.get(), name, H5P_DEFAULT) : H5I_INVALID_HID);
  if (!attribute.valid()) fail(attribute_place(object, name), "cannot be read");
  if (list) return attribute;
  const Handle space(H5Aget_space(attribute.get()));
  // NetCDF knows no scalar attributes: h5netcdf and xarray write an array of one.
  const hssize_t count = H5Sget_simple_extent_npoints(space.get());
  if (count != 1)
    fail(attribute_place(object, name), "wrong shape",
         count == 0 ? "nothing" : "an array of " + std::to_string(count), "one value");
  return attribute;
}

template <class Number>
std::optional<Number> InputFile::number_attribute(const std::string& object, const char* name,
                                                  H5T_class_t kind, hid_t as,
                                                  const char* expected) const {
  const ReadingGuard guard(path_);
  const Handle attribute = open_attribute(object, name);
  if (!attribute.valid()) return std::nullopt;
  const Handle type(H5Aget_type(attribute.get()));
  if (H5Tget_class(type.get()) != kind)
    fail(attribute_place(object, name), "wrong type", type_text(type.get()), expected);
  Number value = 0;
  if (H5Aread(attribute.get(), as, &value) < 0)
    fail(attribute_place(object, name), "cannot be read");
  return value;
}

std::optional<int64_t> InputFile::integer_attribute(const std::string& object,
                                                    const char* name) const {
  return number_attribute<int64_t>(object, name, H5T_INTEGER, H5T_NATIVE_INT64, "an integer");
}

std::optional<double> InputFile::real_attribute(const std::string& object, const char* name) const {
  return number_attribute<double>(object, name, H5T_FLOAT, H5T_NATIVE_DOUBLE, "a float");
}

std::optional<std::string> InputFile::text_attribute(const std::string& object,
                                                     const char* name) const {
  const ReadingGuard guard(path_);
  const Handle attribute = open_attribute(object, name);
  if (!attribute.valid()) return std::nullopt;
  const std::string place = attribute_place(object, name);
  const Handle type(H5Aget_type(attribute.get()));
  if (H5Tget_class(type.get()) != H5T_STRING)
    fail(place, "wrong type", type_text(type.get()), "a string");
  std::string text;
  if (H5Tis_variable_str(type.get()) > 0) {
    std::byte reference[kTextReference];
    if (H5Aread(attribute.get(), text_reference_type(), reference) < 0)
      fail(place, "cannot be read");
    TextHeap::Result result = TextHeap(path_, file_.get(), size_).read(reference);
    if (result.outcome == TextHeap::Outcome::null) fail(place, "no text", "a null string", "text");
    if (result.outcome == TextHeap::Outcome::damaged)
      fail(place, "cannot be read", "damaged text", "intact text");
    text = std::move(result.text);
  } else {
    const size_t size = H5Tget_size(type.get());
    if (size > static_cast<size_t>(size_))
      fail(place, "absurd size", std::to_string(size) + " bytes", "less than the file holds");
    text.resize(size);
    if (H5Aread(attribute.get(), type.get(), text.data()) < 0) fail(place, "cannot be read");
    const size_t padding = text.find('\0');
    if (padding != std::string::npos) text.resize(padding);
    if (H5Tget_strpad(type.get()) == H5T_STR_SPACEPAD) text.erase(text.find_last_not_of(' ') + 1);
  }
  if (!valid_utf8(text)) fail(place, "not text", "bytes that are not UTF-8", "UTF-8");
  return text;
}

uint64_t InputFile::address(const std::string& object) const {
  const ReadingGuard guard(path_);
  H5O_info_t info;
  if (H5Oget_info2(open(object).get(), &info, H5O_INFO_BASIC) < 0)
    fail(object, "cannot be read", "a damaged object", "a readable one");
  return info.addr;
}

/// The attribute DIMENSION_LIST of HDF5's dimension scales: a list of object references for each
/// axis. The library's own functions (H5DS) would copy the lists out of the heap by its lengths.
std::vector<uint64_t> InputFile::scale_addresses(const std::string& dataset) const {
  constexpr const char* kList = "DIMENSION_LIST";
  const ReadingGuard guard(path_);
  const Handle attribute = open_attribute(dataset, kList, true);
  if (!attribute.valid()) return {};
  const std::string place = attribute_place(dataset, kList);
  const Handle type(H5Aget_type(attribute.get())), space(H5Aget_space(attribute.get()));
  const Handle element(H5Tget_class(type.get()) == H5T_VLEN ? H5Tget_super(type.get())
                                                            : H5I_INVALID_HID);
  if (!element.valid() || H5Tequal(element.get(), H5T_STD_REF_OBJ) <= 0)
    fail(place, "wrong type", type_text(type.get()), "lists of object references");
  const hssize_t axes = H5Sget_simple_extent_npoints(space.get());
  if (axes < 0 || axes > H5S_MAX_RANK)
    fail(place, "wrong length", std::to_string(axes), "one for each axis");
  std::vector<std::byte> references(static_cast<size_t>(axes) * kTextReference);
  if (axes > 0 && H5Aread(attribute.get(), text_reference_type(), references.data()) < 0)
    fail(place, "cannot be read");
  TextHeap heap(path_, file_.get(), size_);
  std::vector<uint64_t> addresses;
  for (size_t at = 0; at < references.size(); at += kTextReference) {
    const std::optional<uint64_t> first = heap.first_object(references.data() + at);
    if (!first) fail(place, "cannot be read", "a damaged list", "an intact one");
    addresses.push_back(*first);
  }
  return addresses;
}

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
