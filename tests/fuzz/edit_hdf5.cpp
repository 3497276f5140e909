#include "tests/fuzz/edit_hdf5.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <string>
#include <vector>

#include "io/hdf5.hpp"

namespace kvsim::fuzz {
namespace {

using h5::Handle;

template <class List>
const auto& one_of(Random& random, const List& list) {
  return list[below(random, std::size(list))];
}

herr_t collect(hid_t, const char* name, const H5L_info_t*, void* names) {
  static_cast<std::vector<std::string>*>(names)->emplace_back(name);
  return 0;
}

std::vector<std::string> objects(hid_t file) {
  std::vector<std::string> names;
  H5Lvisit(file, H5_INDEX_NAME, H5_ITER_NATIVE, collect, &names);
  return names;
}

constexpr std::array kIntegers = {int64_t{0},
                                  int64_t{1},
                                  int64_t{-1},
                                  int64_t{2},
                                  int64_t{3},
                                  int64_t{16},
                                  int64_t{1} << 31,
                                  int64_t{1} << 40,
                                  std::numeric_limits<int64_t>::max(),
                                  std::numeric_limits<int64_t>::min()};
constexpr std::array kReals = {0.0,
                               -0.0,
                               1.0,
                               -1.0,
                               1e-300,
                               1e300,
                               std::numeric_limits<double>::infinity(),
                               std::numeric_limits<double>::quiet_NaN()};
const char* const kTexts[] = {"",
                              "x",
                              "kvtrace",
                              "half",
                              "snapkv,window=2",
                              "../../x",
                              "/etc/passwd",
                              "=1+1",
                              "\x1b[2J",
                              "\xff\xfe",
                              "{\"policies\": [1, {}]}",
                              "[]",
                              "{\"policies\": [{\"record\": \"knorm\", \"parameters\": 3}]}",
                              "python:x.py:f",
                              "external,scores=/dev/zero"};

Handle text_type(Random& random) {
  Handle type(H5Tcopy(H5T_C_S1));
  H5Tset_size(type.get(), below(random, 3) == 0 ? 9 : H5T_VARIABLE);
  if (below(random, 2) == 0) H5Tset_cset(type.get(), H5T_CSET_UTF8);
  return type;
}

void set_attribute(hid_t owner, const char* name, Random& random) {
  H5Adelete(owner, name);
  const hsize_t length = below(random, 4);
  const Handle space(below(random, 4) > 0 ? H5Screate(H5S_SCALAR)
                     : length == 0        ? H5Screate(H5S_NULL)
                                          : H5Screate_simple(1, &length, nullptr));
  const auto write = [&](hid_t type, const void* value) {
    const Handle attribute(H5Acreate2(owner, name, type, space.get(), H5P_DEFAULT, H5P_DEFAULT));
    if (attribute.valid()) H5Awrite(attribute.get(), type, value);
  };
  switch (below(random, 3)) {
    case 0: {
      const std::vector<int64_t> values(4, one_of(random, kIntegers));
      write(one_of(random, std::array{H5T_NATIVE_INT64, H5T_NATIVE_UINT64}), values.data());
      break;
    }
    case 1: {
      const std::vector<double> values(4, one_of(random, kReals));
      write(H5T_NATIVE_DOUBLE, values.data());
      break;
    }
    default: {
      const std::string text = std::string(one_of(random, kTexts)) + std::string(9, '\0');
      const std::vector<const char*> pointers(4, text.c_str());
      const Handle type = text_type(random);
      const bool fixed = H5Tis_variable_str(type.get()) <= 0;
      if (fixed && H5Sget_simple_extent_npoints(space.get()) > 1) return;
      write(type.get(), fixed ? static_cast<const void*>(text.data()) : pointers.data());
    }
  }
}

void change_attribute(hid_t file, const std::string& object, Random& random) {
  const Handle owner(H5Oopen(file, object.c_str(), H5P_DEFAULT));
  H5O_info_t info;
  if (!owner.valid() || H5Oget_info1(owner.get(), &info) < 0) return;
  if (info.num_attrs == 0) return set_attribute(owner.get(), "attention_scale", random);
  char name[64] = {};
  H5Aget_name_by_idx(owner.get(), ".", H5_INDEX_NAME, H5_ITER_NATIVE, below(random, info.num_attrs),
                     name, sizeof name, H5P_DEFAULT);
  if (below(random, 6) == 0)
    H5Adelete(owner.get(), name);
  else
    set_attribute(owner.get(), name, random);
}

std::vector<hsize_t> shape_of(hid_t dataset) {
  const Handle space(H5Dget_space(dataset));
  std::vector<hsize_t> shape(8);
  shape.resize(static_cast<size_t>(
      std::max(0, H5Sget_simple_extent_dims(space.get(), shape.data(), nullptr))));
  return shape;
}

/// The dataset again with another shape, type or storage; its values are lost.
void replace_dataset(hid_t file, const std::string& object, Random& random) {
  std::vector<hsize_t> shape;
  Handle type;
  {
    const Handle dataset(H5Dopen2(file, object.c_str(), H5P_DEFAULT));
    if (!dataset.valid()) return;
    shape = shape_of(dataset.get());
    type = Handle(H5Dget_type(dataset.get()));
  }
  if (below(random, 3) == 0) {
    const hid_t types[] = {H5T_STD_I8LE,   H5T_STD_I64BE, H5T_IEEE_F32LE,
                           H5T_IEEE_F64LE, H5T_STD_U16LE, H5T_STD_REF_OBJ};
    type = below(random, 3) == 0 ? text_type(random) : Handle(H5Tcopy(one_of(random, types)));
  }
  if (!shape.empty() && below(random, 2) == 0) {
    const hsize_t lengths[] = {0, 1, 2, 3, 17, hsize_t{1} << 20, hsize_t{1} << 40};
    shape[below(random, shape.size())] = one_of(random, lengths);
  }
  if (below(random, 6) == 0) shape.push_back(2);
  const Handle properties(H5Pcreate(H5P_DATASET_CREATE));
  if (!shape.empty() && below(random, 2) == 0) {
    std::vector<hsize_t> chunk(shape.size());
    for (hsize_t& length : chunk) length = 1 + below(random, 16);
    H5Pset_chunk(properties.get(), static_cast<int>(chunk.size()), chunk.data());
    if (below(random, 2) == 0) H5Pset_shuffle(properties.get());
    if (below(random, 2) == 0) H5Pset_deflate(properties.get(), 1);
    if (below(random, 2) == 0) H5Pset_fletcher32(properties.get());
  } else {
    hsize_t count = 1;
    for (const hsize_t length : shape) count *= std::min<hsize_t>(length, 1 << 20);
    if (count > 1 << 16) return;  // contiguous data would fill the file
  }
  const Handle space(shape.empty()
                         ? H5Screate(H5S_SCALAR)
                         : H5Screate_simple(static_cast<int>(shape.size()), shape.data(), nullptr));
  H5Ldelete(file, object.c_str(), H5P_DEFAULT);
  Handle(H5Dcreate2(file, object.c_str(), type.get(), space.get(), H5P_DEFAULT, properties.get(),
                    H5P_DEFAULT));
}

/// Other numbers in the same dataset.
void change_values(hid_t file, const std::string& object, Random& random) {
  const Handle dataset(H5Dopen2(file, object.c_str(), H5P_DEFAULT));
  if (!dataset.valid()) return;
  const Handle type(H5Dget_type(dataset.get())), space(H5Dget_space(dataset.get()));
  const auto count = H5Sget_simple_extent_npoints(space.get());
  if (count <= 0 || count > 1 << 16) return;
  const auto length = static_cast<size_t>(count);
  const size_t at = below(random, length);
  const auto rewrite = [&](auto kind, hid_t memory, auto value) {
    std::vector<decltype(kind)> values(length);
    H5Dread(dataset.get(), memory, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data());
    values[at] = static_cast<decltype(kind)>(value);
    H5Dwrite(dataset.get(), memory, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data());
  };
  switch (H5Tget_class(type.get())) {
    case H5T_INTEGER: rewrite(int64_t{}, H5T_NATIVE_INT64, one_of(random, kIntegers)); break;
    case H5T_FLOAT: rewrite(double{}, H5T_NATIVE_DOUBLE, one_of(random, kReals)); break;
    case H5T_STRING: {
      if (H5Tis_variable_str(type.get()) <= 0) break;
      const std::vector<const char*> texts(length, one_of(random, kTexts));
      H5Dwrite(dataset.get(), type.get(), H5S_ALL, H5S_ALL, H5P_DEFAULT, texts.data());
      break;
    }
    default: break;
  }
}

void link_elsewhere(hid_t file, const std::string& object, const std::string& other,
                    Random& random) {
  H5Ldelete(file, object.c_str(), H5P_DEFAULT);
  switch (below(random, 4)) {
    case 0: H5Lcreate_soft(other.c_str(), file, object.c_str(), H5P_DEFAULT, H5P_DEFAULT); break;
    case 1:
      H5Lcreate_external("/etc/passwd", "/", file, object.c_str(), H5P_DEFAULT, H5P_DEFAULT);
      break;
    case 2: Handle(H5Gcreate2(file, object.c_str(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT)); break;
    default: H5Lcreate_hard(file, other.c_str(), file, object.c_str(), H5P_DEFAULT, H5P_DEFAULT);
  }
}

}  // namespace

void edit_hdf5(hid_t file, unsigned seed) {
  Random random(seed);
  const std::vector<std::string> names = objects(file);
  if (names.empty()) return;
  const std::string object = one_of(random, names);
  switch (below(random, 8)) {
    case 0: H5Ldelete(file, object.c_str(), H5P_DEFAULT); break;
    case 1:
    case 2: change_attribute(file, "/", random); break;
    case 3: change_attribute(file, object, random); break;
    case 4: replace_dataset(file, object, random); break;
    case 5:
    case 6: change_values(file, object, random); break;
    default: link_elsewhere(file, object, one_of(random, names), random);
  }
}

}  // namespace kvsim::fuzz
