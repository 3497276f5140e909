// Damage where HDF5 keeps its structure, and edits that leave a sound file with wrong contents.
#include <hdf5_hl.h>

#include <algorithm>
#include <cstring>
#include <string_view>

#include "io/hdf5.hpp"
#include "tests/fuzz/edit_hdf5.hpp"
#include "tests/fuzz/targets.hpp"

namespace kvsim::fuzz {
namespace {

/// Where tables, heaps and headers begin; of old headers, which have no signature, where the tables
/// of symbols say that they are.
std::vector<size_t> structures(const uint8_t* data, size_t size) {
  std::vector<size_t> found = {0};
  constexpr std::string_view signs = "TREESNODHEAPGCOLOHDRFRHPBTHD";
  for (size_t i = 8; i + 8 < size; i += 8) {
    if (data[i] < 'A' || data[i] > 'Z') continue;  // most of a file: fast with sanitizers, too
    if (signs.find({reinterpret_cast<const char*>(data + i), 4}) % 4 == 0) found.push_back(i);
    if (std::memcmp(data + i, "SNOD", 4) != 0) continue;
    for (size_t entry = i + 16; entry + 40 <= size && entry < i + 16 + 8 * 40; entry += 40) {
      uint64_t header = 0;
      std::memcpy(&header, data + entry, sizeof header);
      if (header > 0 && header < size) found.push_back(header);
    }
  }
  return found;
}

uint64_t telling_number(Random& random, size_t size, const std::vector<size_t>& places) {
  const uint64_t some[] = {0,
                           1,
                           2,
                           7,
                           8,
                           0x7F,
                           0x80,
                           0xFF,
                           0xFFFF,
                           0x7FFFFFFF,
                           0xFFFFFFFF,
                           ~uint64_t{0},
                           uint64_t{1} << 40,
                           size,
                           size - 1,
                           size + 1,
                           places[below(random, places.size())]};
  return some[below(random, std::size(some))];
}

/// One field of one structure, 1 to 8 bytes wide.
void change_field(uint8_t* data, size_t size, Random& random) {
  const std::vector<size_t> places = structures(data, size);
  const size_t width = size_t{1} << below(random, 4);
  const size_t at = places[below(random, places.size())] + below(random, 24) * width;
  if (at + width > size) return;
  uint64_t value = 0;
  std::memcpy(&value, data + at, width);
  switch (below(random, 3)) {
    case 0: value += below(random, 17) - 8; break;
    case 1: value ^= uint64_t{1} << below(random, 8 * width); break;
    default: value = telling_number(random, size, places);
  }
  std::memcpy(data + at, &value, width);
}

/// A structure over another.
void copy_structure(uint8_t* data, size_t size, Random& random) {
  const std::vector<size_t> places = structures(data, size);
  const size_t from = places[below(random, places.size())];
  const size_t to = places[below(random, places.size())];
  const size_t length = std::min({size_t{8} << below(random, 5), size - from, size - to});
  std::memmove(data + to, data + from, length);
}

/// A sound file with other contents; empty where the library refuses.
std::string edited(const std::string& image, Random& random) {
  const h5::Handle file(
      H5LTopen_file_image(const_cast<char*>(image.data()), image.size(), H5LT_FILE_IMAGE_OPEN_RW));
  if (!file.valid()) return {};
  for (size_t edits = 1 + below(random, 3); edits > 0; --edits) edit_hdf5(file.get(), random());
  H5Fflush(file.get(), H5F_SCOPE_GLOBAL);
  const ssize_t size = H5Fget_file_image(file.get(), nullptr, 0);
  if (size <= 0) return {};
  std::string changed(static_cast<size_t>(size), '\0');
  H5Fget_file_image(file.get(), changed.data(), changed.size());
  return changed;
}

}  // namespace

size_t mutate_hdf5(uint8_t* data, size_t size, size_t most, unsigned seed,
                   const std::vector<std::string>& seeds) {
  Random random(seed + 1);
  h5::silence_errors();
  const size_t way = below(random, 8);
  if (way < 3 && !seeds.empty()) {  // edits start from a sound file: the library edits no others
    const std::string changed = edited(seeds[below(random, seeds.size())], random);
    if (!changed.empty() && changed.size() <= most) {
      std::memcpy(data, changed.data(), changed.size());
      return changed.size();
    }
  }
  for (size_t changes = 1 + below(random, 3); changes > 0; --changes) {
    if (way == 7)
      copy_structure(data, size, random);
    else
      change_field(data, size, random);
  }
  return size;
}

}  // namespace kvsim::fuzz
