#include <fmt/format.h>
#include <fmt/ranges.h>
#include <xxhash.h>

#include <cerrno>
#include <cstdio>

#include "io/trace_reader.hpp"

namespace kvsim {
namespace {

std::string hex(XXH128_hash_t hash) {
  XXH128_canonical_t bytes;
  XXH128_canonicalFromHash(&bytes, hash);
  return fmt::format("{:02x}", fmt::join(bytes.digest, ""));
}

}  // namespace

std::string file_digest(const std::string& path) {
  const auto close = [](std::FILE* f) { std::fclose(f); };
  const std::unique_ptr<std::FILE, decltype(close)> file(std::fopen(path.c_str(), "rb"), close);
  if (!file) bad_data({std::strerror(errno), path});
  const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state(XXH3_createState(),
                                                                       &XXH3_freeState);
  if (!state) throw Error(Fault::failure, {"out of memory", path});
  XXH3_128bits_reset(state.get());
  std::vector<char> buffer(size_t{1} << 17);  // fits the second-level cache
  while (const size_t got = std::fread(buffer.data(), 1, buffer.size(), file.get()))
    XXH3_128bits_update(state.get(), buffer.data(), got);
  if (std::ferror(file.get()) != 0) bad_data({"read error", path});
  return "xxh3-128:" + hex(XXH3_128bits_digest(state.get()));
}

std::string text_digest(std::string_view text) {
  return hex(XXH3_128bits(text.data(), text.size()));
}

const std::string& TraceReader::digest() const {
  if (digest_.empty()) digest_ = file_digest(file_.path());
  return digest_;
}

}  // namespace kvsim
