#pragma once
#include <hdf5.h>

#include "io/hdf5.hpp"

namespace kvsim::h5 {

/// Facts that undoing the filters of a chunked dataset takes.
struct ChunkedData {
  hid_t dataset = H5I_INVALID_HID;
  Shape shape;
  Shape chunk;
  int64_t element_size = 0;
  std::vector<H5Z_filter_t> filters;  ///< gzip, shuffle, fletcher32; in the order applied
  int64_t file_size = 0;
};

/// Reads and decodes all chunks into `out` (row-major). Done here and not by HDF5, whose pipeline
/// trusts a chunk to decode to its full size and reads past the end of one that does not.
/// Returns an empty string, or what is wrong.
std::string read_chunks(const ChunkedData& data, std::byte* out);

}  // namespace kvsim::h5
