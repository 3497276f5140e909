#include <unistd.h>
#include <zlib.h>

#include <atomic>
#include <cerrno>

#include "io/crash_guard.hpp"
#include "io/hdf5.hpp"

namespace kvsim::h5 {
namespace {

using Bytes = std::vector<std::byte>;

/// Facts that undoing the filters of a chunked dataset takes.
struct ChunkedData {
  hid_t dataset = H5I_INVALID_HID;
  Shape shape;
  Shape chunk;
  int64_t element_size = 0;
  std::vector<H5Z_filter_t> filters;  ///< gzip, shuffle, fletcher32; in the order applied
  int64_t file_size = 0;
};

/// Fletcher's 32-bit checksum over big-endian 16-bit words; an odd last byte is a high byte.
uint32_t fletcher32(const std::byte* data, size_t size) {
  constexpr size_t kWords = 360;  // as many as cannot overflow 32 bits
  const auto fold = [](uint32_t x) { return (x & 0xFFFFu) + (x >> 16); };
  uint32_t sum = 0, sums = 0;
  for (size_t i = 0; i < size;) {
    for (size_t w = 0; w < kWords && i < size; ++w, i += 2) {
      const uint32_t low = i + 1 < size ? static_cast<uint32_t>(data[i + 1]) : 0;
      sum += static_cast<uint32_t>(data[i]) << 8 | low;
      sums += sum;
    }
    sum = fold(sum);
    sums = fold(sums);
  }
  return fold(sums) << 16 | fold(sum);
}

bool undo_fletcher32(Bytes& chunk) {
  if (chunk.size() < 4) return false;
  const size_t size = chunk.size() - 4;
  uint32_t stored = 0;
  for (size_t i = 0; i < 4; ++i) stored |= static_cast<uint32_t>(chunk[size + i]) << (8 * i);
  const uint32_t computed = fletcher32(chunk.data(), size);
  chunk.resize(size);
  // Early HDF5 releases stored the checksum with the bytes of each half swapped; both are valid.
  return stored == computed ||
         stored == ((computed & 0x00FF00FFu) << 8 | (computed & 0xFF00FF00u) >> 8);
}

/// `size`: what the chunk must inflate to, checksum included when one lies inside.
bool undo_gzip(Bytes& chunk, size_t size) {
  Bytes whole(size);
  uLongf written = size;
  if (uncompress(reinterpret_cast<Bytef*>(whole.data()), &written,
                 reinterpret_cast<const Bytef*>(chunk.data()), chunk.size()) != Z_OK)
    return false;
  if (written != size) return false;
  chunk.swap(whole);
  return true;
}

/// Shuffled: first the first bytes of all elements, then the second bytes, ...; a rest that is no
/// whole element stays where it is.
void undo_shuffle(Bytes& chunk, size_t element) {
  const size_t count = chunk.size() / element;
  Bytes whole(chunk);
  for (size_t b = 0; b < element; ++b)
    for (size_t i = 0; i < count; ++i) whole[i * element + b] = chunk[b * count + i];
  chunk.swap(whole);
}

/// Undoes the filters that were applied to this chunk (bit f of `skipped`: filter f was not).
std::string decode(const ChunkedData& data, uint32_t skipped, size_t chunk_bytes, Bytes& chunk) {
  for (size_t f = data.filters.size(); f-- > 0;) {
    if (f < 32 && (skipped >> f & 1u) != 0) continue;
    switch (data.filters[f]) {
      case H5Z_FILTER_FLETCHER32:
        if (!undo_fletcher32(chunk)) return "a chunk whose checksum is wrong";
        break;
      case H5Z_FILTER_SHUFFLE:
        if (data.element_size > 1) undo_shuffle(chunk, data.element_size);
        break;
      default: {
        size_t size = chunk_bytes;  // a checksum applied before gzip lies inside
        for (size_t e = 0; e < f; ++e)
          if (data.filters[e] == H5Z_FILTER_FLETCHER32 && (skipped >> e & 1u) == 0) size += 4;
        if (!undo_gzip(chunk, size)) return "a chunk that does not decompress to its size";
      }
    }
  }
  return chunk.size() == chunk_bytes ? "" : "a chunk of the wrong size";
}

/// Copies the part of a decoded chunk that lies inside the dataset.
void scatter(const ChunkedData& data, const Shape& begin, const std::byte* chunk, std::byte* out) {
  const size_t rank = data.shape.size();
  Shape length(rank), at(rank, 0);
  for (size_t a = 0; a < rank; ++a) length[a] = std::min(data.chunk[a], data.shape[a] - begin[a]);
  const size_t row = length[rank - 1] * data.element_size;
  for (;;) {
    int64_t from = 0, to = 0;
    for (size_t a = 0; a < rank; ++a) {
      from = from * data.chunk[a] + at[a];
      to = to * data.shape[a] + begin[a] + at[a];
    }
    std::memcpy(out + to * data.element_size, chunk + from * data.element_size, row);
    size_t a = rank - 1;  // the next row: count up over all axes but the last
    for (;;) {
      if (a == 0) return;
      --a;
      if (++at[a] < length[a]) break;
      at[a] = 0;
    }
  }
}

std::string read_chunk(const ChunkedData& data, const Shape& begin, size_t chunk_bytes,
                       Bytes& chunk, std::byte* out) {
  const std::vector<hsize_t> offset(begin.begin(), begin.end());
  hsize_t stored = 0;
  if (H5Dget_chunk_storage_size(data.dataset, offset.data(), &stored) < 0 || stored == 0)
    return "a chunk that is not stored";
  if (stored > static_cast<hsize_t>(data.file_size)) return "a chunk larger than the file";
  chunk.resize(stored);
  uint32_t skipped = 0;
  if (H5Dread_chunk(data.dataset, H5P_DEFAULT, offset.data(), &skipped, chunk.data()) < 0)
    return "a chunk that cannot be read";
  std::string fault = decode(data, skipped, chunk_bytes, chunk);
  if (fault.empty()) scatter(data, begin, chunk.data(), out);
  return fault;
}

/// deflate cannot shrink data more than 1032 times; anything above is a lie about the size.
constexpr int64_t kLargestCompression = 1100;

std::string filter_text(H5Z_filter_t filter) {
  switch (filter) {
    case H5Z_FILTER_SZIP: return "szip";
    case H5Z_FILTER_NBIT: return "nbit";
    case H5Z_FILTER_SCALEOFFSET: return "scaleoffset";
    case 32000: return "lzf";
    case 32001: return "blosc";
    case 32004: return "lz4";
    case 32015: return "zstd";
    default: return "number " + std::to_string(filter);
  }
}

/// a * b, or the largest value when it does not fit.
int64_t saturating_product(int64_t a, int64_t b) {
  int64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? std::numeric_limits<int64_t>::max() : product;
}

/// Reads and decodes all chunks into `out` (row-major). Done here and not by HDF5, whose pipeline
/// trusts a chunk to decode to its full size and reads past the end of one that does not.
/// Returns an empty string, or what is wrong.
std::string read_chunks(const ChunkedData& data, std::byte* out) {
  size_t chunk_bytes = data.element_size;
  for (const int64_t length : data.chunk) chunk_bytes *= static_cast<size_t>(length);
  for (const int64_t length : data.shape)
    if (length == 0) return "";
  Shape begin(data.shape.size(), 0);
  Bytes chunk;
  for (;;) {
    std::string fault = read_chunk(data, begin, chunk_bytes, chunk, out);
    if (!fault.empty()) return fault;
    size_t a = begin.size();
    for (;;) {
      if (a == 0) return "";
      --a;
      begin[a] += data.chunk[a];
      if (begin[a] < data.shape[a]) break;
      begin[a] = 0;
    }
  }
}

}  // namespace

std::string shape_text(const Shape& shape) {
  std::string text = "[";
  for (const int64_t length : shape) text += (text.size() > 1 ? ", " : "") + std::to_string(length);
  return text + "]";
}

std::string type_text(hid_t type) {
  const std::string bits = std::to_string(8 * H5Tget_size(type));
  const bool big = H5Tget_size(type) > 1 && H5Tget_order(type) == H5T_ORDER_BE;
  switch (H5Tget_class(type)) {
    case H5T_INTEGER:
      return (big ? "big-endian " : "") +
             std::string(H5Tget_sign(type) == H5T_SGN_NONE ? "uint" : "int") + bits;
    case H5T_FLOAT: return (big ? "big-endian float" : "float") + bits;
    case H5T_STRING:
      return H5Tis_variable_str(type) > 0 ? "variable-length string" : "fixed-length string";
    case H5T_ENUM: return "an enumeration or boolean";
    case H5T_COMPOUND: return "a compound type";
    case H5T_ARRAY: return "an array type";
    case H5T_VLEN: return "a variable-length type";
    case H5T_REFERENCE: return "a reference";
    default: return "another type";
  }
}

Handle half_type() {
  Handle type(H5Tcopy(H5T_IEEE_F32LE));
  H5Tset_fields(type.get(), 15, 10, 5, 0, 10);  // sign bit, exponent at 10 (5 bits), fraction
  H5Tset_size(type.get(), 2);
  H5Tset_ebias(type.get(), 15);
  return type;
}

Handle text_type() {
  Handle type(H5Tcopy(H5T_C_S1));
  H5Tset_size(type.get(), H5T_VARIABLE);
  H5Tset_cset(type.get(), H5T_CSET_UTF8);
  return type;
}

Handle no_conversion() {
  Handle properties(H5Pcreate(H5P_DATASET_XFER));
  H5Pset_buffer(properties.get(), 1, nullptr, nullptr);
  return properties;
}

InputDataset::InputDataset(const InputFile& file, std::string name, Handle id)
    : file_(&file), name_(std::move(name)), id_(std::move(id)), type_(H5Dget_type(id_.get())) {
  if (!type_.valid()) fail("cannot be read", "a damaged type", "a readable dataset");
  read_shape();
  check_layout();
}

void InputDataset::fail(std::string what, std::string found, std::string expected) const {
  file_->fail(name_, std::move(what), std::move(found), std::move(expected));
}

void InputDataset::read_shape() {
  const Handle space(H5Dget_space(id_.get()));
  const H5S_class_t kind = H5Sget_simple_extent_type(space.get());
  if (kind != H5S_SIMPLE && kind != H5S_SCALAR) fail("wrong shape", "no data", "an array");
  const int rank = H5Sget_simple_extent_ndims(space.get());
  if (rank < 0 || rank > H5S_MAX_RANK) fail("cannot be read", "a damaged shape");
  std::vector<hsize_t> lengths(rank);
  H5Sget_simple_extent_dims(space.get(), lengths.data(), nullptr);
  for (const hsize_t length : lengths) {
    if (length > static_cast<hsize_t>(std::numeric_limits<int64_t>::max()))
      fail("absurd size", "a length of " + std::to_string(length));
    shape_.push_back(static_cast<int64_t>(length));
  }
}

int64_t InputDataset::count() const {
  if (contains(shape_, 0)) return 0;
  int64_t count = 1;
  for (const int64_t length : shape_) count = saturating_product(count, length);
  return count;
}

int64_t InputDataset::bytes() const {
  const int64_t count_now = count();
  const auto size = static_cast<int64_t>(H5Tget_size(type_.get()));
  // On disk a variable-length string is a length, an address and an index, as in memory 16 bytes.
  const bool text = H5Tget_class(type_.get()) == H5T_STRING && H5Tis_variable_str(type_.get()) > 0;
  return saturating_product(count_now, text ? 16 : size);
}

/// Compares the shape with what the file really stores, before anything is allocated.
void InputDataset::check_layout() {
  const Handle properties(H5Dget_create_plist(id_.get()));
  if (!properties.valid()) fail("cannot be read", "a damaged layout");
  const auto stored = static_cast<int64_t>(
      std::min<hsize_t>(H5Dget_storage_size(id_.get()), std::numeric_limits<int64_t>::max()));
  const int64_t wanted = bytes();
  const auto absurd = [&](const std::string& found) {
    fail("absurd size", found, "storage for shape " + shape_text(shape_));
  };
  if (H5Pget_external_count(properties.get()) > 0)
    fail("not allowed", "data in another file", "data in this file");
  switch (H5Pget_layout(properties.get())) {
    case H5D_COMPACT:
      if (stored != wanted) absurd(std::to_string(stored) + " bytes stored");
      break;
    case H5D_CONTIGUOUS: {
      if (stored != wanted) absurd(std::to_string(stored) + " bytes stored");
      if (wanted == 0) break;
      const haddr_t begin = H5Dget_offset(id_.get());
      if (begin == HADDR_UNDEF || begin > static_cast<haddr_t>(file_->size()) ||
          static_cast<haddr_t>(wanted) > static_cast<haddr_t>(file_->size()) - begin)
        absurd("data that end after the file");
      begin_ = static_cast<int64_t>(begin);
      break;
    }
    case H5D_CHUNKED:
      if (stored > file_->size()) absurd("more chunks than the file can hold");
      check_filters(properties.get());
      check_chunks(properties.get(), stored);
      break;
    default: fail("not allowed", "a virtual or unknown layout", "contiguous or chunked data");
  }
}

void InputDataset::check_filters(hid_t properties) {
  const int filters = H5Pget_nfilters(properties);
  if (filters < 0) fail("cannot be read", "a damaged filter list");
  for (int f = 0; f < filters; ++f) {
    unsigned flags = 0;
    size_t values = 0;
    const H5Z_filter_t filter = H5Pget_filter2(properties, static_cast<unsigned>(f), &flags,
                                               &values, nullptr, 0, nullptr, nullptr);
    if (filter != H5Z_FILTER_DEFLATE && filter != H5Z_FILTER_SHUFFLE &&
        filter != H5Z_FILTER_FLETCHER32)
      fail("unknown filter", filter_text(filter), "none, gzip, shuffle or fletcher32");
    compressed_ = compressed_ || filter == H5Z_FILTER_DEFLATE;
    filters_.push_back(filter);
  }
}

void InputDataset::check_chunks(hid_t properties, int64_t stored) {
  std::vector<hsize_t> lengths(shape_.size());
  const int rank = H5Pget_chunk(properties, static_cast<int>(lengths.size()), lengths.data());
  if (rank != static_cast<int>(shape_.size())) fail("cannot be read", "a damaged chunk shape");
  int64_t chunks = 1;
  int64_t chunk_count = 1;
  for (size_t a = 0; a < shape_.size(); ++a) {
    const auto length = static_cast<int64_t>(lengths[a]);
    if (length <= 0) fail("cannot be read", "a damaged chunk shape");
    chunk_.push_back(length);
    chunk_count = saturating_product(chunk_count, length);
    chunks = saturating_product(chunks, shape_[a] / length + (shape_[a] % length != 0 ? 1 : 0));
  }
  const int64_t all = saturating_product(
      chunks, saturating_product(chunk_count, bytes() == 0 ? 1 : bytes() / count()));
  const int64_t limit = compressed_ ? saturating_product(stored, kLargestCompression) : stored;
  if (all > limit)
    fail("absurd size", std::to_string(stored) + " bytes stored",
         "storage for shape " + shape_text(shape_));
  const Handle space(H5Dget_space(id_.get()));
  hsize_t present = 0;
  if (H5Dget_num_chunks(id_.get(), space.get(), &present) < 0)
    fail("cannot be read", "a damaged chunk index");
  if (present != static_cast<hsize_t>(chunks))
    fail("missing data", std::to_string(present) + " chunks stored",
         std::to_string(chunks) + " for shape " + shape_text(shape_));
}

void InputDataset::expect_shape(const Shape& wanted, const char* letters) const {
  std::string text = std::string(letters) + " = [";
  bool same = wanted.size() == shape_.size();
  for (size_t a = 0; a < wanted.size(); ++a) {
    text += (a > 0 ? ", " : "") + (wanted[a] < 0 ? "any" : std::to_string(wanted[a]));
    if (same) same = wanted[a] < 0 ? shape_[a] >= 1 : shape_[a] == wanted[a];
  }
  if (!same) fail("wrong shape", shape_text(shape_), text + "]");
}

ElementType InputDataset::float_type() const {
  if (H5Tequal(type_.get(), H5T_IEEE_F32LE) > 0) return ElementType::float32;
  if (H5Tequal(type_.get(), half_type().get()) > 0) return ElementType::float16;
  const char* expected = "little-endian float32, float16, or uint16 with encoding = \"bfloat16\"";
  if (H5Tequal(type_.get(), H5T_STD_U16LE) > 0) {
    const auto encoding = file_->text_attribute(name_, "encoding");
    if (encoding == "bfloat16") return ElementType::bfloat16;
    fail("wrong type",
         "uint16 " + (encoding ? "with encoding \"" + *encoding + "\"" : "without encoding"),
         expected);
  }
  fail("wrong type", type_text(type_.get()), expected);
}

void InputDataset::read_raw(void* out) const {
  const ReadingGuard guard(file_->path(), static_cast<double>(bytes()));
  if (count() == 0) return;
  if (!filters_.empty())
    return read_filtered(H5Tget_size(type_.get()), static_cast<std::byte*>(out));
  if (read_contiguous(static_cast<std::byte*>(out))) return;
  if (H5Dread(id_.get(), type_.get(), H5S_ALL, H5S_ALL, no_conversion().get(), out) < 0)
    fail("cannot be read", "damaged data", "intact data");
}

/// Pieces of contiguous data side by side: one thread cannot keep a fast disk busy. False where
/// HDF5 has to find the data, or has to say what is wrong with them.
bool InputDataset::read_contiguous(std::byte* out) const {
  constexpr int64_t kPiece = int64_t{4} << 20;
  if (begin_ < 0 || file_->descriptor_ < 0) return false;
  std::atomic<bool> whole = true;
  parallel_for((bytes() + kPiece - 1) / kPiece, [&](int64_t piece) {
    const int64_t end = std::min(bytes(), (piece + 1) * kPiece);
    for (int64_t at = piece * kPiece; at < end;) {
      const ssize_t got = pread(file_->descriptor_, out + at, end - at, begin_ + at);
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) {
        whole = false;
        return;
      }
      at += got;
    }
  });
  return whole;
}

std::vector<float> InputDataset::read_floats() const {
  const ElementType type = float_type();
  std::vector<std::byte> raw(bytes());
  read_raw(raw.data());
  std::vector<float> values(count());
  widen(type, raw.data(), count(), values.data());
  return values;
}

std::vector<double> InputDataset::read_doubles() const {
  if (H5Tequal(type_.get(), H5T_IEEE_F64LE) > 0) {
    std::vector<double> values(count());
    read_raw(values.data());
    return values;
  }
  const std::vector<float> values = read_floats();
  return {values.begin(), values.end()};
}

std::vector<int64_t> InputDataset::read_integers() const {
  const size_t size = H5Tget_size(type_.get());
  if (H5Tget_class(type_.get()) != H5T_INTEGER || size > sizeof(int64_t))
    fail("wrong type", type_text(type_.get()), "int64");
  // HDF5 looks for the bits of an integer where its type says that they are.
  if (H5Tget_precision(type_.get()) != 8 * size || H5Tget_offset(type_.get()) != 0)
    fail("wrong type",
         "an integer of " + std::to_string(H5Tget_precision(type_.get())) + " bits in " +
             std::to_string(size) + " bytes",
         "int64");
  std::vector<int64_t> values(count());  // wide enough to convert in place
  read_raw(values.data());
  const ReadingGuard guard(file_->path(), static_cast<double>(bytes()));
  if (H5Tconvert(type_.get(), H5T_NATIVE_INT64, values.size(), values.data(), nullptr,
                 H5P_DEFAULT) < 0)
    fail("cannot be read", "integers that cannot be converted", "int64");
  return values;
}

std::vector<std::string> InputDataset::read_text() const {
  if (H5Tget_class(type_.get()) != H5T_STRING)
    fail("wrong type", type_text(type_.get()), "variable-length strings");
  if (H5Tis_variable_str(type_.get()) > 0) return read_variable_text();
  const size_t size = H5Tget_size(type_.get());
  std::vector<char> raw(bytes());
  read_raw(raw.data());
  std::vector<std::string> texts;
  for (size_t begin = 0; begin < raw.size(); begin += size)
    texts.emplace_back(raw.data() + begin, strnlen(raw.data() + begin, size));
  return texts;
}

std::vector<std::string> InputDataset::read_variable_text() const {
  std::vector<std::byte> references(static_cast<size_t>(count()) * kTextReference);
  read_references(references.data());
  TextHeap heap(file_->path(), file_->file_.get(), file_->size());
  std::vector<std::string> texts;
  for (size_t at = 0; at < references.size(); at += kTextReference) {
    TextHeap::Result result = heap.read(references.data() + at);
    const std::string place = " at index " + std::to_string(at / kTextReference);
    if (result.outcome == TextHeap::Outcome::null) fail("no text", "a null string" + place, "text");
    if (result.outcome == TextHeap::Outcome::damaged)
      fail("cannot be read", "damaged text" + place, "intact text");
    texts.push_back(std::move(result.text));
  }
  return texts;
}

/// Chunks with filters are decoded here; anything else HDF5 reads without looking at the heap.
void InputDataset::read_references(std::byte* out) const {
  const ReadingGuard guard(file_->path(), static_cast<double>(bytes()));
  if (count() == 0) return;
  if (!filters_.empty()) return read_filtered(kTextReference, out);
  if (H5Dread(id_.get(), text_reference_type(), H5S_ALL, H5S_ALL, H5P_DEFAULT, out) < 0)
    fail("cannot be read", "damaged data", "intact data");
}

void InputDataset::read_filtered(size_t element, std::byte* out) const {
  const ReadingGuard guard(file_->path());
  const std::string fault = read_chunks(
      {id_.get(), shape_, chunk_, static_cast<int64_t>(element), filters_, file_->size()}, out);
  if (!fault.empty()) fail("cannot be read", fault, "intact data");
}

}  // namespace kvsim::h5
