
#include "io/hdf5.hpp"

namespace kvsim::h5 {
namespace {

constexpr uint64_t kMostLoaded = uint64_t{64} << 20;  // bytes of collections kept

/// Little-endian unsigned integer of `bytes` bytes.
template <class Byte>
uint64_t number(const Byte* data, size_t bytes) {
  uint64_t value = 0;
  for (size_t i = bytes; i-- > 0;) value = value << 8 | static_cast<unsigned char>(data[i]);
  return value;
}

/// HDF5 asks this "conversion" to turn references into references: they stay as they are.
herr_t keep_references(hid_t source, hid_t target, H5T_cdata_t* data, size_t, size_t, size_t, void*,
                       void*, hid_t) {
  if (data->command != H5T_CONV_INIT) return 0;
  data->need_bkg = H5T_BKG_NO;
  return H5Tget_size(source) == kTextReference && H5Tget_size(target) == kTextReference ? 0 : -1;
}

hid_t register_reference_type() {
  const hid_t type = H5Tcreate(H5T_OPAQUE, kTextReference);
  H5Tset_tag(type, "kvsim text reference");
  const Handle text(H5Tcopy(H5T_C_S1));
  H5Tset_size(text.get(), H5T_VARIABLE);
  H5Tregister(H5T_PERS_SOFT, "kvsim text reference", text.get(), type, keep_references);
  const Handle list(H5Tvlen_create(H5T_STD_REF_OBJ));
  H5Tregister(H5T_PERS_SOFT, "kvsim list reference", list.get(), type, keep_references);
  return type;
}

}  // namespace

hid_t text_reference_type() {
  static const hid_t type = register_reference_type();  // kept for the life of the program
  return type;
}

TextHeap::TextHeap(const std::string& path, hid_t file, int64_t size)
    : file_(path, std::ios::binary), size_(static_cast<uint64_t>(size)) {
  const Handle properties(H5Fget_create_plist(file));
  size_t address_bytes = 0, length_bytes = 0;
  hsize_t user_block = 0;
  known_sizes_ = H5Pget_sizes(properties.get(), &address_bytes, &length_bytes) >= 0 &&
                 address_bytes == 8 && length_bytes == 8 &&
                 H5Pget_userblock(properties.get(), &user_block) >= 0 && user_block <= size_;
  base_ = user_block;
}

/// A collection: "GCOL", version 1, 3 bytes, its size (8), then objects: index (2), reference count
/// (2), 4 bytes, size (8), data padded to 8 bytes. Index 0 is the free space at the end.
std::optional<TextHeap::Collection> TextHeap::load(uint64_t address) {
  constexpr size_t kHead = 16;
  if (address > size_ - base_ || size_ - base_ - address < kHead) return std::nullopt;
  char head[kHead];
  file_.clear();
  file_.seekg(static_cast<std::streamoff>(base_ + address));
  if (!file_.read(head, kHead) || std::memcmp(head, "GCOL\1", 5) != 0) return std::nullopt;
  const uint64_t size = number(head + 8, 8);
  if (size < kHead || size > size_ - base_ - address) return std::nullopt;
  Collection result;
  result.bytes.resize(size);
  file_.seekg(static_cast<std::streamoff>(base_ + address));
  if (!file_.read(result.bytes.data(), static_cast<std::streamsize>(size))) return std::nullopt;
  for (size_t at = kHead; at + kHead <= size;) {
    const char* object = result.bytes.data() + at;
    const auto index = static_cast<uint32_t>(number(object, 2));
    const uint64_t length = number(object + 8, 8);
    if (index == 0 || length > size - at - kHead) break;
    result.objects[index] = {at + kHead, static_cast<size_t>(length)};
    at += kHead + (static_cast<size_t>(length) + 7) / 8 * 8;
  }
  return result;
}

const TextHeap::Collection* TextHeap::collection(uint64_t address) {
  const auto known = loaded_.find(address);
  if (known != loaded_.end()) return &known->second;
  std::optional<Collection> fresh = load(address);
  if (!fresh) return nullptr;
  if (loaded_bytes_ > kMostLoaded) {
    loaded_.clear();
    loaded_bytes_ = 0;
  }
  loaded_bytes_ += fresh->bytes.size();
  return &loaded_.emplace(address, std::move(*fresh)).first->second;
}

std::optional<std::string_view> TextHeap::object(const std::byte* reference, uint64_t length) {
  const Collection* heap = collection(number(reference + 4, 8));
  if (heap == nullptr) return std::nullopt;
  const auto found = heap->objects.find(static_cast<uint32_t>(number(reference + 12, 4)));
  if (found == heap->objects.end() || found->second.size < length) return std::nullopt;
  return std::string_view(heap->bytes.data() + found->second.begin, length);
}

TextHeap::Result TextHeap::read(const std::byte* reference) {
  const uint64_t length = number(reference, 4);
  if (!known_sizes_) return {};
  if (number(reference + 4, 8) == 0) return {Outcome::null, {}};
  if (length == 0) return {Outcome::text, {}};
  const std::optional<std::string_view> found = object(reference, length);
  if (!found) return {};
  return {Outcome::text, std::string(found->substr(0, found->find('\0')))};
}

std::optional<uint64_t> TextHeap::first_object(const std::byte* reference) {
  constexpr uint64_t kAddress = 8;
  const uint64_t length = number(reference, 4);
  if (!known_sizes_) return std::nullopt;
  if (length == 0) return 0;
  const std::optional<std::string_view> found = object(reference, length * kAddress);
  if (!found) return std::nullopt;
  return number(found->data(), kAddress);
}

size_t utf8_length(std::string_view text, size_t i) {
  const auto byte = [&](size_t k) { return static_cast<unsigned char>(text[k]); };
  const unsigned char first = byte(i);
  if (first < 0x80) return 1;
  const size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || first > 0xF4 || i + length > text.size()) return 0;
  for (size_t k = i + 1; k < i + length; ++k)
    if ((byte(k) & 0xC0) != 0x80) return 0;
  const unsigned char second = byte(i + 1);
  if (first == 0xE0 && second < 0xA0) return 0;  // an overlong form
  if (first == 0xED && second > 0x9F) return 0;  // a surrogate
  if (first == 0xF0 && second < 0x90) return 0;  // an overlong form
  if (first == 0xF4 && second > 0x8F) return 0;  // above U+10FFFF
  return length;
}

bool valid_utf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const size_t length = utf8_length(text, i);
    if (length == 0) return false;
    i += length;
  }
  return true;
}

std::string repaired_utf8(std::string_view text) {
  std::string result;
  for (size_t i = 0; i < text.size();) {
    const size_t length = utf8_length(text, i);
    if (length == 0) {
      result += "\xEF\xBF\xBD";
      ++i;
    } else {
      result += text.substr(i, length);
      i += length;
    }
  }
  return result;
}

}  // namespace kvsim::h5
