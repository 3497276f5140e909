#include "io/chunks.hpp"

#include <zlib.h>

#include <algorithm>
#include <cstring>

namespace kvsim::h5 {
namespace {

using Bytes = std::vector<std::byte>;

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

/// Early HDF5 releases stored the checksum with the bytes of each half swapped; both are valid.
uint32_t swap_halves(uint32_t x) { return (x & 0x00FF00FFu) << 8 | (x & 0xFF00FF00u) >> 8; }

bool undo_fletcher32(Bytes& chunk) {
  if (chunk.size() < 4) return false;
  const size_t size = chunk.size() - 4;
  uint32_t stored = 0;
  for (size_t i = 0; i < 4; ++i) stored |= static_cast<uint32_t>(chunk[size + i]) << (8 * i);
  const uint32_t computed = fletcher32(chunk.data(), size);
  chunk.resize(size);
  return stored == computed || stored == swap_halves(computed);
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
        if (data.element_size > 1) undo_shuffle(chunk, static_cast<size_t>(data.element_size));
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
  const size_t row = static_cast<size_t>(length[rank - 1] * data.element_size);
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

}  // namespace

std::string read_chunks(const ChunkedData& data, std::byte* out) {
  size_t chunk_bytes = static_cast<size_t>(data.element_size);
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

}  // namespace kvsim::h5
