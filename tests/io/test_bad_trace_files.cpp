#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "tests/io/bad_trace.hpp"

using namespace kvsim;
using namespace kvsim::test;

namespace {

Edit queries(std::vector<int64_t> values) { return integers("query_position", std::move(values)); }

Edit span_names(std::vector<const char*> values) { return texts("spans/name", std::move(values)); }

/// Numbers of type `type` in the place of a dataset.
Edit floats(const char* object, const h5::Shape& shape, hid_t type = H5T_IEEE_F32LE) {
  static const std::vector<float> zeros(4096, 0.0f);
  return [=](Editor& e) { e.dataset(object, type, shape, H5T_NATIVE_FLOAT, zeros.data()); };
}

Edit file_link(const char* object, const char* target) {
  return [=](Editor& e) { e.external_link(object, "other.h5", target); };
}

Edit soft_link(const char* object, const char* target) {
  return [=](Editor& e) { e.soft_link(object, target); };
}

}  // namespace

TEST_CASE("a root attribute that is missing or of another type or value is refused", "[io][bad]") {
  require_refused({
      {"no format", without_attribute("format"), {"attribute format", "missing"}},
      {"another format", attribute("/", "format", "kvtrack"), {"kvtrack", "\"kvtrace\""}},
      {"format is a number", attribute("/", "format", 1), {"wrong type", "int64", "a string"}},
      {"format is null", [](Editor& e) { e.null_text("/", "format"); }, {"attribute format"}},
      {"model is not UTF-8", attribute("/", "model", "\xFF"), {"attribute model", "UTF-8"}},
      {"version 2",
       attribute("/", "version", 2),
       {"version from the future", "found 2", "expected 1"}},
      {"version 0", attribute("/", "version", 0), {"no such version"}},
      {"version is text",
       attribute("/", "version", "1"),
       {"attribute version", "wrong type", "an integer"}},
      {"version is real", attribute("/", "version", 1.0), {"wrong type", "float64", "an integer"}},
      {"no num_layers", without_attribute("num_layers"), {"attribute num_layers", "missing"}},
      {"zero layers", attribute("/", "num_layers", 0), {"attribute num_layers", "out of range"}},
      {"negative head_dim", attribute("/", "head_dim", -8), {"attribute head_dim", "found -8"}},
      {"absurd hidden_size",
       attribute("/", "hidden_size", std::numeric_limits<int64_t>::max()),
       {"attribute hidden_size"}},
      {"no latent", attribute("/", "latent_size", 0), {"attribute latent_size", "out of range"}},
      {"latent is text",
       attribute("/", "latent_size", "5"),
       {"attribute latent_size", "wrong type"}},
      {"heads do not divide", attribute("/", "num_kv_heads", 3), {"not a multiple", "found 4"}},
      {"prompt longer than all",
       attribute("/", "prompt_len", 17),
       {"attribute prompt_len", "found 17", "total_len = 16"}},
      {"no prompt", attribute("/", "prompt_len", 0), {"attribute prompt_len"}},
      {"prompt_len is an array",
       [](Editor& e) {
    e.array("/", "prompt_len", {10, 10});
       },
       {"attribute prompt_len", "one value"}},
      {"scale is NaN",
       attribute("/", "attention_scale", NAN),
       {"attribute attention_scale", "positive"}},
      {"scale is negative", attribute("/", "attention_scale", -1.0), {"attribute attention_scale"}},
      {"scale is text",
       attribute("/", "attention_scale", "0.1"),
       {"attribute attention_scale", "a float"}},
      {"unknown rope layout",
       attribute("/", "rope_layout", "quarter"),
       {"attribute rope_layout", "quarter"}},
      {"no rope layout", without_attribute("rope_layout"), {"attribute rope_layout", "missing"}},
  });
}

TEST_CASE("missing datasets and groups are named", "[io][bad]") {
  require_refused({
      {"query_position", removed("query_position"), {"query_position: missing"}},
      {"q", removed("layers/0/q"), {"layers/0/q: missing"}},
      {"k", removed("layers/2/k"), {"layers/2/k: missing"}},
      {"v", removed("layers/0/v"), {"layers/0/v: missing"}},
      {"wo", removed("layers/0/wo"), {"layers/0/wo: missing"}},
      {"layers", removed("layers"), {"layers: missing"}},
      {"spans/begin", removed("spans/begin"), {"spans/begin: missing"}},
      {"residual_norm of one layer",
       removed("layers/2/residual_norm"),
       {"layers/2/residual_norm", "all layers"}},
      {"no layer", both(removed("layers/0"), removed("layers/2")), {"layers", "no layers"}},
      {"a group for a dataset",
       both(removed("layers/0/q"), group("layers/0/q")),
       {"layers/0/q", "a dataset"}},
      {"a dataset for a group",
       both(removed("layers"), integers("layers", {1})),
       {"layers", "a group"}},
      {"a dataset for a layer", both(removed("layers/0"), integers("layers/0", {1})), {"layers/0"}},
      {"a link that leads nowhere",
       both(removed("layers/0/q"), soft_link("layers/0/q", "/nowhere")),
       {"layers/0/q", "leads nowhere"}},
      {"a link to itself",
       both(removed("layers/0/q"), soft_link("layers/0/q", "/layers/0/q")),
       {"layers/0/q"}},
      {"a link to another file",
       both(removed("layers/0/q"), file_link("layers/0/q", "/q")),
       {"layers/0/q", "a link to another file"}},
      {"a soft link to such a link",
       both(removed("layers/0/q"),
            both(file_link("layers/0/x", "/q"), soft_link("layers/0/q", "/layers/0/x"))),
       {"layers/0/q"}},
      {"a layer in another file",
       both(removed("layers/2"), file_link("layers/2", "/")),
       {"layers/2", "a link to another file"}},
  });
}

TEST_CASE("layers must be decimal indices of the model's layers", "[io][bad]") {
  require_refused({
      {"a name", group("layers/first"), {"layers/first", "a decimal index from 0 to 2"}},
      {"beyond the model", group("layers/3"), {"layers/3"}},
      {"a leading zero", group("layers/01"), {"layers/01"}},
      {"negative", group("layers/-1"), {"layers/-1"}},
      {"too large for an int", group("layers/99999999999999999999"), {"a decimal index"}},
  });
}

TEST_CASE("wrong shapes, ranks and element types are refused with what was expected", "[io][bad]") {
  require_refused({
      {"q heads",
       floats("layers/0/q", {2, 16, 8}),
       {"layers/0/q: wrong shape: found [2, 16, 8], expected [Hq, M, d] = [4, 16, 8]"}},
      {"k rank",
       floats("layers/0/k", {2, 128}),
       {"layers/0/k: wrong shape: found [2, 128], expected [Hkv, N, d]"}},
      {"v length", floats("layers/0/v", {2, 15, 6}), {"layers/0/v", "[2, 16, any]"}},
      {"v without width", floats("layers/0/v", {2, 16, 0}), {"layers/0/v"}},
      {"wo width", floats("layers/0/wo", {4, 8, 12}), {"layers/0/wo", "[4, 6, 12]"}},
      {"sink", floats("layers/2/attention_sink", {5}), {"layers/2/attention_sink"}},
      {"residual_norm", floats("layers/2/residual_norm", {15}), {"layers/2/residual_norm"}},
      {"check_output",
       floats("layers/2/check_output", {4, 3, 6}),
       {"layers/2/check_output", "[4, 2, 6]"}},
      {"rope", floats("rope/inv_freq", {3}, H5T_IEEE_F64LE), {"rope/inv_freq"}},
      {"a layer's rope",
       floats("layers/2/rope_inv_freq", {5}, H5T_IEEE_F64LE),
       {"layers/2/rope_inv_freq", "at most 4"}},
      {"token ids", integers("tokens/id", {1, 2}), {"tokens/id", "[16]"}},
      {"token texts", texts("tokens/text", {"a"}), {"tokens/text"}},
      {"positions of rank 2",
       floats("query_position", {4, 4}, H5T_STD_I64LE),
       {"query_position", "[M]"}},
      {"no positions", integers("query_position", {}), {"query_position"}},
      {"positions are floats",
       floats("query_position", {16}),
       {"query_position: wrong type: found float32, expected int64"}},
      {"float64",
       floats("layers/0/q", {4, 16, 8}, H5T_IEEE_F64LE),
       {"layers/0/q: wrong type: found float64"}},
      {"big-endian",
       floats("layers/0/q", {4, 16, 8}, H5T_IEEE_F32BE),
       {"wrong type: found big-endian float32, expected little-endian"}},
      {"integers", floats("layers/0/q", {4, 16, 8}, H5T_STD_I32LE), {"found int32"}},
      {"uint16 without encoding",
       floats("layers/0/q", {4, 16, 8}, H5T_STD_U16LE),
       {"uint16 without encoding"}},
      {"uint16 of another encoding",
       both(floats("layers/0/q", {4, 16, 8}, H5T_STD_U16LE),
            attribute("layers/0/q", "encoding", "posit")),
       {"posit"}},
      {"ids are text",
       texts("tokens/id", std::vector<const char*>(16, "1")),
       {"tokens/id", "wrong type"}},
      {"ids too large",
       integers("tokens/id", std::vector<int64_t>(16, int64_t{1} << 40)),
       {"tokens/id", "int32"}},
      {"texts are numbers",
       integers("tokens/text", std::vector<int64_t>(16, 1)),
       {"tokens/text", "wrong type"}},
      {"a null text",
       [](Editor& e) {
    std::vector<const char*> texts(16, "x");
    texts[4] = nullptr;
    e.texts("tokens/text", texts);
       },
       {"tokens/text", "null string at index 4"}},
  });
}

TEST_CASE("positions must ascend within the trace", "[io][bad]") {
  require_refused({
      {"negative", queries({-1, 1, 2}), {"query_position", "out of range", "-1 at index 0"}},
      {"beyond the end", queries({3, 16}), {"16 at index 1", "0 to 15"}},
      {"descending", queries({3, 2}), {"not ascending", "2 after 3 at index 1"}},
      {"twice", queries({3, 3}), {"not ascending"}},
      {"checks",
       integers("check/query_position", {15, 3}),
       {"check/query_position", "not ascending"}},
      {"another number of queries", queries({3, 4}), {"layers/0/q: wrong shape", "[4, 2, 8]"}},
  });
}

TEST_CASE("spans must be named, disjoint or nested, ascending and inside the prompt", "[io][bad]") {
  require_refused({
      {"beyond the prompt",
       integers("spans/end", {4, 11}),
       {"spans", "directive 4 to 11", "prompt_len = 10"}},
      {"negative", integers("spans/begin", {-1, 4}), {"span out of range", "-1"}},
      {"backwards", integers("spans/end", {0, 9}), {"span out of range"}},
      {"overlapping", integers("spans/begin", {1, 3}), {"overlap", "at least 4"}},
      {"the shorter of two with one begin first",
       both(integers("spans/begin", {1, 1}), integers("spans/end", {4, 9})),
       {"not ascending", "the longer"}},
      {"descending",
       both(integers("spans/begin", {5, 1}), integers("spans/end", {9, 4})),
       {"not ascending"}},
      {"fewer ends", integers("spans/end", {4}), {"spans/end", "[2]"}},
      {"a plus", span_names({"a+b", "c"}), {"spans/name", "bad span name", "a+b"}},
      {"a comma", span_names({"a,b", "c"}), {"bad span name"}},
      {"an equals sign", span_names({"a=b", "c"}), {"bad span name"}},
      {"a blank", span_names({"a b", "c"}), {"bad span name", "white space"}},
      {"a newline", span_names({"a\nb", "c"}), {"bad span name"}},
      {"empty", span_names({"", "c"}), {"bad span name", "empty"}},
      {"a range", span_names({"a", "12-19"}), {"bad span name", "12-19", "range"}},
      {"twice", span_names({"a", "a"}), {"used twice"}},
      {"null", span_names({"a", nullptr}), {"spans/name", "null string"}},
      {"not UTF-8", span_names({"a", "\xC3"}), {"UTF-8"}},
  });
}
