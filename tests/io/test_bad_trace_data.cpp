#include <catch2/catch.hpp>
#include <cmath>

#include "tests/io/bad_trace.hpp"

using namespace kvsim;
using namespace kvsim::test;

namespace {

Edit huge(const char* object, const h5::Shape& shape, const Storage& storage) {
  return [=](Editor& e) {
    e.dataset(object, H5T_IEEE_F32LE, shape, H5T_NATIVE_FLOAT, nullptr, storage);
  };
}

}  // namespace

TEST_CASE("NaN and infinity in a tensor are refused with dataset and index", "[io][bad]") {
  require_refused({
      {"NaN in k",
       number("layers/0/k", 16 * 8 + 3 * 8 + 5, NAN),
       {"layers/0/k: not a finite number: found NaN at [1, 3, 5]"}},
      {"infinity in q", number("layers/2/q", 0, INFINITY), {"layers/2/q", "infinity at [0, 0, 0]"}},
      {"in v", number("layers/0/v", 191, -INFINITY), {"layers/0/v", "infinity at [1, 15, 5]"}},
      {"in wo", number("layers/0/wo", 1, NAN), {"layers/0/wo"}},
      {"in residual_norm",
       number("layers/0/residual_norm", 2, NAN),
       {"layers/0/residual_norm", "NaN at [2]"}},
      {"in attention_sink", number("layers/2/attention_sink", 3, NAN), {"layers/2/attention_sink"}},
      {"in check_output", number("layers/2/check_output", 0, NAN), {"layers/2/check_output"}},
      {"in rope", number("rope/inv_freq", 0, NAN), {"rope/inv_freq"}},
      {"in a layer's rope",
       number("layers/2/rope_inv_freq", 1, INFINITY),
       {"layers/2/rope_inv_freq", "finite"}},
      {"a layer's rope without layout",
       [](Editor& e) { e.text("layers/2/rope_inv_freq", "layout", "thirds"); },
       {"layers/2/rope_inv_freq attribute layout", "thirds"}},
      {"a layer's rope beyond the head",
       attribute("layers/2/rope_inv_freq", "first", 5),
       {"layers/2/rope_inv_freq attribute first", "found 5", "0 to 4"}},
      {"a layer's rope before the head",
       attribute("layers/2/rope_inv_freq", "first", -1),
       {"layers/2/rope_inv_freq attribute first"}},
      {"factor of a layer's rope",
       attribute("layers/2/rope_inv_freq", "attention_factor", 0.0),
       {"layers/2/rope_inv_freq attribute attention_factor", "a positive number"}},
      {"softcap", attribute("layers/2", "softcap", NAN), {"layers/2 attribute softcap"}},
      {"zero softcap", attribute("layers/2", "softcap", 0.0), {"layers/2 attribute softcap"}},
      {"softcap as text",
       attribute("layers/2", "softcap", "5"),
       {"layers/2 attribute softcap", "wrong type"}},
      {"layer scale",
       attribute("layers/2", "attention_scale", INFINITY),
       {"layers/2 attribute attention_scale"}},
      {"window", attribute("layers/2", "sliding_window", 0), {"layers/2 attribute sliding_window"}},
      {"window as a float",
       attribute("layers/2", "sliding_window", 7.0),
       {"layers/2 attribute sliding_window", "an integer"}},
  });
}

TEST_CASE("sizes that the file cannot hold are refused before any allocation", "[io][bad]") {
  constexpr int64_t kHuge = int64_t{1} << 38;
  require_refused({
      {"contiguous, nothing stored",
       huge("layers/0/v", {2, 16, kHuge}, {}),
       {"layers/0/v: absurd size: found 0 bytes stored", "[2, 16, 274877906944]"}},
      {"a product beyond 64 bits",
       huge("layers/0/v", {2, 16, kHuge}, {.chunk = {1, 1, 1 << 20}}),
       {"layers/0/v: absurd size"}},
      {"chunks missing",
       huge("layers/0/q", {4, 16, 8}, {.chunk = {1, 16, 8}}),
       {"layers/0/q", "0 bytes stored"}},
      {"compressed, nothing stored",
       huge("layers/0/v", {2, 16, kHuge}, {.chunk = {2, 16, 1024}, .gzip = 9}),
       {"layers/0/v: absurd size"}},
      {"positions",
       [](Editor& e) {
    e.dataset("query_position", H5T_STD_I64LE, {kHuge}, H5T_NATIVE_INT64, nullptr);
       },
       {"query_position: absurd size"}},
      {"texts",
       [](Editor& e) {
    const h5::Handle type(H5Tcopy(H5T_C_S1));
    H5Tset_size(type.get(), H5T_VARIABLE);
    e.dataset("tokens/text", type.get(), {16}, type.get(), nullptr);
       },
       {"tokens/text: absurd size"}},
      });
}

TEST_CASE("one chunk that was never written is refused", "[io][bad]") {
  const TemporaryFolder folder;
  const std::string path = folder / "bad.h5";
  write_small_trace(path);
  {
    Editor e(path);
    huge("layers/0/q", {4, 16, 8}, {.chunk = {1, 16, 8}, .gzip = 1})(e);
    const h5::Handle dataset(H5Dopen2(e.file(), "layers/0/q", H5P_DEFAULT));
    const h5::Handle space(H5Dget_space(dataset.get()));
    const hsize_t start[] = {0, 0, 0}, count[] = {3, 16, 8};
    H5Sselect_hyperslab(space.get(), H5S_SELECT_SET, start, nullptr, count, nullptr);
    const h5::Handle memory(H5Screate_simple(3, count, nullptr));
    std::vector<float> noise(3 * 16 * 8);
    for (size_t i = 0; i < noise.size(); ++i) noise[i] = 1.0f / static_cast<float>(i + 1);
    REQUIRE(H5Dwrite(dataset.get(), H5T_NATIVE_FLOAT, memory.get(), space.get(), H5P_DEFAULT,
                     noise.data()) >= 0);
  }
  const Thrown thrown = error_of([&] { read_all(path); });
  CHECK_THAT(thrown.message, Catch::Contains("layers/0/q: missing data: found 3 chunks stored"));
}

TEST_CASE("data in other files, virtual datasets and unknown filters are refused", "[io][bad]") {
  static const hsize_t lengths[] = {4, 16, 8};
  static const auto create = [](Editor& e, hid_t properties) {
    e.remove("layers/0/q");
    const h5::Handle space(H5Screate_simple(3, lengths, nullptr));
    REQUIRE(h5::Handle(H5Dcreate2(e.file(), "layers/0/q", H5T_IEEE_F32LE, space.get(), H5P_DEFAULT,
                                  properties, H5P_DEFAULT))
                .valid());
  };
  require_refused(
      {
          {"external storage",
           [](Editor& e) {
    const h5::Handle properties(H5Pcreate(H5P_DATASET_CREATE));
    H5Pset_external(properties.get(), "/etc/passwd", 0, 4 * 16 * 8 * 4);
    create(e, properties.get());
           },
           {"layers/0/q", "data in another file"}},
          {"virtual",
           [](Editor& e) {
    const h5::Handle properties(H5Pcreate(H5P_DATASET_CREATE));
    const h5::Handle space(H5Screate_simple(3, lengths, nullptr));
    H5Pset_virtual(properties.get(), space.get(), "other.h5", "q", space.get());
    create(e, properties.get());
           },
           {"layers/0/q", "virtual"}},
      {"szip or nbit",
       [](Editor& e) {
    const h5::Handle properties(H5Pcreate(H5P_DATASET_CREATE));
    const hsize_t chunk[] = {1, 16, 8};
    H5Pset_chunk(properties.get(), 3, chunk);
    H5Pset_nbit(properties.get());
    create(e, properties.get());
       },
       {"layers/0/q: unknown filter: found nbit, expected none, gzip, shuffle or fletcher32"}},
      });
}
