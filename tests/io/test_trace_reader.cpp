#include <catch2/catch.hpp>
#include <cstring>
#include <filesystem>

#include "io/side_files.hpp"
#include "io/trace_reader.hpp"
#include "tests/io/trace_fixture.hpp"
#include "tests/support/paths.hpp"

using namespace kvsim;
using namespace kvsim::test;

namespace {

bool same(const Tensor& a, const Tensor& b) {
  return a.type() == b.type() && a.dim(0) == b.dim(0) && a.dim(1) == b.dim(1) &&
         a.dim(2) == b.dim(2) && std::memcmp(a.data(), b.data(), a.bytes()) == 0;
}

void require_same_layer(const LayerTrace& read, const LayerTrace& written) {
  REQUIRE(same(read.q, written.q));
  REQUIRE(same(read.k, written.k));
  REQUIRE(same(read.v, written.v));
  REQUIRE(same(read.wo, written.wo));
  REQUIRE(read.scale == written.scale);
  REQUIRE(read.softcap == written.softcap);
  REQUIRE(read.sliding_window == written.sliding_window);
  REQUIRE(read.residual_norm == written.residual_norm);
  REQUIRE(read.attention_sink == written.attention_sink);
  REQUIRE(read.check_output == written.check_output);
}

}  // namespace

TEST_CASE("a written trace reads back the same in every element type", "[io]") {
  const ElementType type = GENERATE(ElementType::float32, ElementType::float16,
                                    ElementType::bfloat16);
  const SmallTrace file(type);
  const TraceReader trace(file.path);
  const TraceInfo expected = small_info();
  const TraceInfo& info = trace.info();
  CHECK(info.model == expected.model);
  CHECK(info.source == expected.source);
  CHECK(info.num_layers == 3);
  CHECK(info.num_query_heads == 4);
  CHECK(info.num_kv_heads == 2);
  CHECK(info.head_dim == 8);
  CHECK(info.hidden_size == 12);
  CHECK(info.latent_size == 5);
  CHECK(info.prompt_len == 10);
  CHECK(info.total_len == 16);
  CHECK(info.attention_scale == 0.25);
  CHECK(info.query_position == expected.query_position);
  CHECK(info.check_position == expected.check_position);
  CHECK(info.layers == expected.layers);
  CHECK(info.rope.inv_freq == expected.rope.inv_freq);
  CHECK(info.rope.interleaved);
  CHECK(&info.rotation(0) == &info.rope);
  const Rotation& own = info.rotation(2);
  CHECK(own.inv_freq == std::vector<double>{0.5, -0.25});
  CHECK(own.second_of(1) == 6);
  CHECK(own.attention_factor == 1.25);
  CHECK(info.has_residual_norm);
  CHECK(info.first_step() == 10);
  CHECK(info.steps() == 6);
  REQUIRE(info.spans.size() == 2);
  CHECK(info.spans[1].name == "directive");
  CHECK(info.spans[1].begin == 4);
  CHECK(info.spans[1].end == 9);
  for (const int layer : {0, 2})
    require_same_layer(trace.read_layer(layer, true), small_layer(expected, layer, type));
  CHECK(trace.read_layer(0).check_output.empty());
  CHECK(trace.warnings().empty());
}

TEST_CASE("headers tell a layer's switches without reading its tensors", "[io]") {
  const SmallTrace file(ElementType::bfloat16);
  const TraceReader trace(file.path);
  const LayerHeader& plain = trace.header(0);
  CHECK(plain.scale == 0.25);
  CHECK(plain.softcap == 0);
  CHECK(plain.sliding_window == 0);
  CHECK_FALSE(plain.has_sink);
  const LayerHeader& other = trace.header(2);
  CHECK(other.scale == 0.5);
  CHECK(other.softcap == 5);
  CHECK(other.sliding_window == 7);
  CHECK(other.has_sink);
  CHECK(other.has_check);
  CHECK(other.value_dim == 6);
  CHECK(other.k == ElementType::bfloat16);
}

TEST_CASE("token texts and ids read back, the empty text and text beyond ASCII too", "[io]") {
  const SmallTrace file;
  const TraceReader trace(file.path);
  const auto texts = trace.token_text();
  REQUIRE(texts.size() == 16);
  CHECK(texts[0] == " t0");
  CHECK(texts[5] == "\xC3\xA9t\xC3\xA9");
  CHECK(texts[6].empty());
  CHECK(trace.token_ids().at(15) == 115);
}

TEST_CASE("token text that is not UTF-8 is repaired, not passed on", "[io]") {
  const SmallTrace file;
  std::vector<const char*> texts(16, "x");
  texts[3] = "a\xFF\xC3";
  Editor(file.path).texts("tokens/text", texts);
  CHECK(TraceReader(file.path).token_text()[3] == "a\xEF\xBF\xBD\xEF\xBF\xBD");
}

TEST_CASE("chunked, shuffled, compressed and checksummed data read the same", "[io]") {
  const ElementType type = GENERATE(ElementType::float32, ElementType::float16,
                                    ElementType::bfloat16);
  const Storage storage = GENERATE(
      Storage{.chunk = {1, 5, 8}}, Storage{.chunk = {3, 4096, 5}},
      Storage{.chunk = {1, 16, 8}, .gzip = 4},
      Storage{.chunk = {2, 7, 3}, .shuffle = true, .gzip = 9},
      Storage{.chunk = {1, 5, 8}, .shuffle = true}, Storage{.chunk = {2, 3, 3}, .fletcher32 = true},
      Storage{.chunk = {1, 5, 7}, .shuffle = true, .gzip = 1, .fletcher32 = true});
  const SmallTrace file(type);
  {
    Editor editor(file.path);
    for (const char* object : {"layers/0/q", "layers/0/k", "layers/2/v", "layers/2/wo"})
      editor.store_again(object, storage);
    editor.store_again("tokens/id", {.chunk = {5}, .shuffle = true, .gzip = 3});
    editor.store_again("query_position", {.chunk = {7}, .gzip = 3, .fletcher32 = true});
  }
  const TraceReader trace(file.path);
  const TraceInfo info = small_info();
  for (const int layer : {0, 2})
    require_same_layer(trace.read_layer(layer, true), small_layer(info, layer, type));
  CHECK(trace.info().query_position == info.query_position);
  CHECK(trace.token_ids().at(7) == 107);
  CHECK(trace.warnings().size() == (storage.gzip > 0 ? 1 : 0));
}

TEST_CASE("chunked and compressed token texts read", "[io]") {
  const SmallTrace file;
  const Storage storage = GENERATE(Storage{.chunk = {5}}, Storage{.chunk = {6}, .gzip = 4});
  const std::vector<const char*> texts(16, "word");
  {
    Editor editor(file.path);
    const h5::Handle type(H5Tcopy(H5T_C_S1));
    H5Tset_size(type.get(), H5T_VARIABLE);
    editor.dataset("tokens/text", type.get(), {16}, type.get(), texts.data(), storage);
  }
  CHECK(TraceReader(file.path).token_text() == std::vector<std::string>(16, "word"));
}

TEST_CASE("fixed-length strings are read for attributes, texts and span names", "[io]") {
  const SmallTrace file;
  {
    Editor editor(file.path);
    const h5::Handle type(H5Tcopy(H5T_C_S1));
    H5Tset_size(type.get(), 6);
    editor.dataset("spans/name", type.get(), {2}, type.get(), "first\0second");
  }
  const TraceReader trace(file.path);
  CHECK(trace.info().spans[0].name == "first");
  CHECK(trace.info().spans[1].name == "second");
}

TEST_CASE("a span may lie in another", "[io]") {
  const SmallTrace small;
  const std::string& path = small.path;
  {
    Editor editor(path);
    editor.integers("spans/begin", {1, 2});
    editor.integers("spans/end", {9, 4});
  }
  const TraceReader trace(path);
  REQUIRE(trace.info().spans.size() == 2);
  CHECK(trace.info().spans[1].begin == 2);
  CHECK(trace.info().spans[0].end == 9);
}

TEST_CASE("reading a tensor never converts types inside HDF5", "[io]") {
  const TemporaryFolder folder;
  write_small_trace(folder / "t.h5", ElementType::float16);
  const h5::Handle file(H5Fopen((folder / "t.h5").c_str(), H5F_ACC_RDONLY, H5P_DEFAULT));
  const h5::Handle dataset(H5Dopen2(file.get(), "layers/0/k", H5P_DEFAULT));
  std::vector<float> wide(2 * 16 * 8);
  // Tensors are read with these properties, under which any conversion is an error ...
  const h5::Handle strict = h5::no_conversion();
  CHECK(H5Dread(dataset.get(), H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, strict.get(), wide.data()) < 0);
  // ... which it is not by default ...
  CHECK(H5Dread(dataset.get(), H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, wide.data()) >= 0);
  // ... and they read all the same, to the same numbers.
  const LayerTrace layer = TraceReader(folder / "t.h5").read_layer(0);
  std::vector<float> own(wide.size());
  widen(ElementType::float16, layer.k.data(), layer.k.count(), own.data());
  CHECK(own == wide);
}

TEST_CASE("contiguous data are read in pieces, also behind a user block", "[io]") {
  const TemporaryFolder folder;
  const hsize_t user_block = GENERATE(0, 512);
  const std::string path = folder / "t.h5";
  std::vector<float> values(3 * 1024 * 1024 + 5);  // four pieces of 4 MiB
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 9973);
  {
    const h5::Handle creation(H5Pcreate(H5P_FILE_CREATE));
    H5Pset_userblock(creation.get(), user_block);
    const h5::Handle file(H5Fcreate(path.c_str(), H5F_ACC_TRUNC, creation.get(), H5P_DEFAULT));
    const hsize_t size = values.size();
    const h5::Handle space(H5Screate_simple(1, &size, nullptr));
    const h5::Handle dataset(H5Dcreate2(file.get(), "x", H5T_IEEE_F32LE, space.get(), H5P_DEFAULT,
                                        H5P_DEFAULT, H5P_DEFAULT));
    REQUIRE(H5Dwrite(dataset.get(), H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT,
                     values.data()) >= 0);
  }
  std::vector<float> read(values.size());
  h5::InputFile(path, "file of a test").dataset("x").read_raw(read.data());
  CHECK(read == values);
}

TEST_CASE("the digest is that of the file's bytes", "[io]") {
  const TemporaryFolder folder;
  write_bytes(folder / "empty", "");
  CHECK(file_digest(folder / "empty") == "xxh3-128:99aa06d3014798d86001c324468d497f");
  write_small_trace(folder / "a.h5");
  std::filesystem::copy_file(folder / "a.h5", folder / "b.h5");
  const std::string digest = TraceReader(folder / "a.h5").digest();
  CHECK(digest == file_digest(folder / "b.h5"));
  write_bytes(folder / "b.h5", read_bytes(folder / "b.h5") + "x");
  CHECK(digest != file_digest(folder / "b.h5"));
}

TEST_CASE("optional parts may be absent", "[io]") {
  const SmallTrace file;
  {
    Editor editor(file.path);
    for (const char* object : {"tokens", "spans", "check", "rope", "layers/0/residual_norm",
                               "layers/2/residual_norm", "layers/2/attention_sink"})
      editor.remove(object);
    editor.remove_attribute("/", "source");
  }
  const TraceReader trace(file.path);
  CHECK(trace.info().spans.empty());
  CHECK(trace.info().check_position.empty());
  CHECK_FALSE(trace.info().has_residual_norm);
  CHECK(trace.token_text().empty());
  CHECK(trace.token_ids().empty());
  CHECK(trace.read_layer(2, true).check_output.empty());
  CHECK(trace.read_layer(2).attention_sink.empty());
}

TEST_CASE("every independent case trace reads, when the check folder is there", "[io]") {
  const std::filesystem::path cases = std::filesystem::path(kSourceDir) / "../shared/check/cases";
  if (!std::filesystem::is_directory(cases)) {
    WARN("skipped: no folder " << cases.string());
    return;
  }
  int read = 0;
  for (const auto& entry : std::filesystem::directory_iterator(cases)) {
    if (entry.path().extension() != ".h5" || entry.path().stem() == "scores") continue;
    INFO(entry.path().string());
    const TraceReader trace(entry.path().string());
    for (const int layer : trace.info().layers)
      CHECK(trace.read_layer(layer, true).k.dim(1) == trace.info().total_len);
    ++read;
  }
  CHECK(read > 0);
}
