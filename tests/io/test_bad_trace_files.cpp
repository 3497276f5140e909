#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "tests/io/bad_trace.hpp"

using namespace kvsim;
using namespace kvsim::test;

namespace {

template <int64_t... kValues>
void set_queries(Editor& e) {
  e.integers("query_position", {kValues...});
}

}  // namespace

TEST_CASE("a root attribute that is missing or of another type or value is refused", "[io][bad]") {
  require_refused({
      {"no format",
       [](Editor& e) { e.remove_attribute("/", "format"); },
       {"attribute format", "missing"}},
      {"another format",
       [](Editor& e) { e.text("/", "format", "kvtrack"); },
       {"kvtrack", "\"kvtrace\""}},
      {"format is a number",
       [](Editor& e) { e.integer("/", "format", 1); },
       {"wrong type", "int64", "a string"}},
      {"format is null", [](Editor& e) { e.null_text("/", "format"); }, {"attribute format"}},
      {"model is not UTF-8",
       [](Editor& e) { e.text("/", "model", "\xFF"); },
       {"attribute model", "UTF-8"}},
      {"version 2",
       [](Editor& e) { e.integer("/", "version", 2); },
       {"version from the future", "found 2", "expected 1"}},
      {"version 0", [](Editor& e) { e.integer("/", "version", 0); }, {"no such version"}},
      {"version is text",
       [](Editor& e) { e.text("/", "version", "1"); },
       {"attribute version", "wrong type", "an integer"}},
      {"version is real",
       [](Editor& e) { e.real("/", "version", 1); },
       {"wrong type", "float64", "an integer"}},
      {"no num_layers",
       [](Editor& e) { e.remove_attribute("/", "num_layers"); },
       {"attribute num_layers", "missing"}},
      {"zero layers",
       [](Editor& e) { e.integer("/", "num_layers", 0); },
       {"attribute num_layers", "out of range"}},
      {"negative head_dim",
       [](Editor& e) { e.integer("/", "head_dim", -8); },
       {"attribute head_dim", "found -8"}},
      {"absurd hidden_size",
       [](Editor& e) { e.integer("/", "hidden_size", std::numeric_limits<int64_t>::max()); },
       {"attribute hidden_size"}},
      {"heads do not divide",
       [](Editor& e) { e.integer("/", "num_kv_heads", 3); },
       {"not a multiple", "found 4"}},
      {"prompt longer than all",
       [](Editor& e) { e.integer("/", "prompt_len", 17); },
       {"attribute prompt_len", "found 17", "total_len = 16"}},
      {"no prompt", [](Editor& e) { e.integer("/", "prompt_len", 0); }, {"attribute prompt_len"}},
      {"prompt_len is an array",
       [](Editor& e) {
    e.array("/", "prompt_len", {10, 10});
       },
       {"attribute prompt_len", "one value"}},
      {"scale is NaN",
       [](Editor& e) { e.real("/", "attention_scale", NAN); },
       {"attribute attention_scale", "positive"}},
      {"scale is negative",
       [](Editor& e) { e.real("/", "attention_scale", -1); },
       {"attribute attention_scale"}},
      {"scale is text",
       [](Editor& e) { e.text("/", "attention_scale", "0.1"); },
       {"attribute attention_scale", "a float"}},
      {"unknown rope layout",
       [](Editor& e) { e.text("/", "rope_layout", "quarter"); },
       {"attribute rope_layout", "quarter"}},
      {"no rope layout",
       [](Editor& e) { e.remove_attribute("/", "rope_layout"); },
       {"attribute rope_layout", "missing"}},
  });
}

TEST_CASE("missing datasets and groups are named", "[io][bad]") {
  require_refused({
      {"query_position",
       [](Editor& e) { e.remove("query_position"); },
       {"query_position: missing"}},
      {"q", [](Editor& e) { e.remove("layers/0/q"); }, {"layers/0/q: missing"}},
      {"k", [](Editor& e) { e.remove("layers/2/k"); }, {"layers/2/k: missing"}},
      {"v", [](Editor& e) { e.remove("layers/0/v"); }, {"layers/0/v: missing"}},
      {"wo", [](Editor& e) { e.remove("layers/0/wo"); }, {"layers/0/wo: missing"}},
      {"layers", [](Editor& e) { e.remove("layers"); }, {"layers: missing"}},
      {"spans/begin", [](Editor& e) { e.remove("spans/begin"); }, {"spans/begin: missing"}},
      {"residual_norm of one layer",
       [](Editor& e) { e.remove("layers/2/residual_norm"); },
       {"layers/2/residual_norm", "all layers"}},
      {"no layer",
       [](Editor& e) {
    e.remove("layers/0");
    e.remove("layers/2");
       },
       {"layers", "no layers"}},
      {"a group for a dataset",
       [](Editor& e) {
    e.remove("layers/0/q");
    e.group("layers/0/q");
       },
       {"layers/0/q", "a dataset"}},
                  {"a dataset for a group",
                   [](Editor& e) {
    e.remove("layers");
    e.integers("layers", {1});
                   },
                   {"layers", "a group"}},
      {"a dataset for a layer",
       [](Editor& e) {
    e.remove("layers/0");
    e.integers("layers/0", {1});
       },
       {"layers/0"}},
      {"a link that leads nowhere",
       [](Editor& e) {
    e.remove("layers/0/q");
    e.soft_link("layers/0/q", "/nowhere");
       },
       {"layers/0/q", "leads nowhere"}},
      {"a link to itself",
       [](Editor& e) {
    e.remove("layers/0/q");
    e.soft_link("layers/0/q", "/layers/0/q");
       },
       {"layers/0/q"}},
      {"a link to another file",
       [](Editor& e) {
    e.remove("layers/0/q");
    e.external_link("layers/0/q", "other.h5", "/q");
       },
       {"layers/0/q", "a link to another file"}},
      {"a soft link to such a link",
       [](Editor& e) {
    e.remove("layers/0/q");
    e.external_link("layers/0/x", "other.h5", "/q");
    e.soft_link("layers/0/q", "/layers/0/x");
       },
       {"layers/0/q"}},
      {"a layer in another file",
       [](Editor& e) {
    e.remove("layers/2");
    e.external_link("layers/2", "other.h5", "/");
       },
       {"layers/2", "a link to another file"}},
      });
}

TEST_CASE("layers must be decimal indices of the model's layers", "[io][bad]") {
  require_refused({
      {"a name",
       [](Editor& e) { e.group("layers/first"); },
       {"layers/first", "a decimal index from 0 to 2"}},
      {"beyond the model", [](Editor& e) { e.group("layers/3"); }, {"layers/3"}},
      {"a leading zero", [](Editor& e) { e.group("layers/01"); }, {"layers/01"}},
      {"negative", [](Editor& e) { e.group("layers/-1"); }, {"layers/-1"}},
      {"too large for an int",
       [](Editor& e) { e.group("layers/99999999999999999999"); },
       {"a decimal index"}},
  });
}

TEST_CASE("wrong shapes, ranks and element types are refused with what was expected", "[io][bad]") {
  static const std::vector<float> zeros(4096, 0.0f);
  static const auto put =
      [](Editor& e, const char* object, const h5::Shape& shape, hid_t type = H5T_IEEE_F32LE) {
    e.dataset(object, type, shape, H5T_NATIVE_FLOAT, zeros.data());
  };
  require_refused({
      {"q heads",
       [](Editor& e) {
    put(e, "layers/0/q", {2, 16, 8});
       },
       {"layers/0/q: wrong shape: found [2, 16, 8], expected [Hq, M, d] = [4, 16, 8]"}},
      {"k rank",
       [](Editor& e) {
    put(e, "layers/0/k", {2, 128});
       },
       {"layers/0/k: wrong shape: found [2, 128], expected [Hkv, N, d]"}},
                  {"v length",
                   [](Editor& e) {
    put(e, "layers/0/v", {2, 15, 6});
                   },
                   {"layers/0/v", "[2, 16, any]"}},
      {"v without width",
       [](Editor& e) {
    put(e, "layers/0/v", {2, 16, 0});
       },
       {"layers/0/v"}},
      {"wo width",
       [](Editor& e) {
    put(e, "layers/0/wo", {4, 8, 12});
       },
       {"layers/0/wo", "[4, 6, 12]"}},
      {"sink",
       [](Editor& e) { put(e, "layers/2/attention_sink", {5}); },
       {"layers/2/attention_sink"}},
      {"residual_norm",
       [](Editor& e) { put(e, "layers/2/residual_norm", {15}); },
       {"layers/2/residual_norm"}},
      {"check_output",
       [](Editor& e) {
    put(e, "layers/2/check_output", {4, 3, 6});
       },
       {"layers/2/check_output", "[4, 2, 6]"}},
      {"rope", [](Editor& e) { put(e, "rope/inv_freq", {3}, H5T_IEEE_F64LE); }, {"rope/inv_freq"}},
      {"token ids",
       [](Editor& e) {
    e.integers("tokens/id", {1, 2});
       },
       {"tokens/id", "[16]"}},
      {"token texts", [](Editor& e) { e.texts("tokens/text", {"a"}); }, {"tokens/text"}},
      {"positions of rank 2",
       [](Editor& e) {
    put(e, "query_position", {4, 4}, H5T_STD_I64LE);
       },
       {"query_position", "[M]"}},
      {"no positions", [](Editor& e) { e.integers("query_position", {}); }, {"query_position"}},
      {"positions are floats",
       [](Editor& e) { put(e, "query_position", {16}); },
       {"query_position: wrong type: found float32, expected int64"}},
      {"float64",
       [](Editor& e) {
    put(e, "layers/0/q", {4, 16, 8}, H5T_IEEE_F64LE);
       },
       {"layers/0/q: wrong type: found float64"}},
      {"big-endian",
       [](Editor& e) {
    put(e, "layers/0/q", {4, 16, 8}, H5T_IEEE_F32BE);
       },
       {"wrong type: found big-endian float32, expected little-endian"}},
      {"integers",
       [](Editor& e) {
    put(e, "layers/0/q", {4, 16, 8}, H5T_STD_I32LE);
       },
       {"found int32"}},
      {"uint16 without encoding",
       [](Editor& e) {
    put(e, "layers/0/q", {4, 16, 8}, H5T_STD_U16LE);
       },
       {"uint16 without encoding"}},
      {"uint16 of another encoding",
       [](Editor& e) {
    put(e, "layers/0/q", {4, 16, 8}, H5T_STD_U16LE);
    e.text("layers/0/q", "encoding", "posit");
       },
       {"posit"}},
      {"ids are text",
       [](Editor& e) { e.texts("tokens/id", std::vector<const char*>(16, "1")); },
       {"tokens/id", "wrong type"}},
      {"ids too large",
       [](Editor& e) { e.integers("tokens/id", std::vector<int64_t>(16, int64_t{1} << 40)); },
       {"tokens/id", "int32"}},
      {"texts are numbers",
       [](Editor& e) { e.integers("tokens/text", std::vector<int64_t>(16, 1)); },
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
      {"negative",
       set_queries<-1, 1, 2>,
       {"query_position", "position out of range", "-1 at index 0"}},
      {"beyond the end", set_queries<3, 16>, {"16 at index 1", "0 to 15"}},
      {"descending", set_queries<3, 2>, {"not ascending", "2 at index 1 after 3"}},
      {"twice", set_queries<3, 3>, {"not ascending"}},
      {"checks",
       [](Editor& e) {
    e.integers("check/query_position", {15, 3});
       },
       {"check/query_position", "not ascending"}},
      {"another number of queries", set_queries<3, 4>, {"layers/0/q: wrong shape", "[4, 2, 8]"}},
  });
}

TEST_CASE("spans must be named, disjoint or nested, ascending and inside the prompt", "[io][bad]") {
  require_refused({
      {"beyond the prompt",
       [](Editor& e) {
    e.integers("spans/end", {4, 11});
       },
       {"spans", "directive 4 to 11", "prompt_len = 10"}},
      {"negative",
       [](Editor& e) {
    e.integers("spans/begin", {-1, 4});
       },
       {"span out of range", "-1"}},
                  {"backwards",
                   [](Editor& e) {
    e.integers("spans/end", {0, 9});
                   },
                   {"span out of range"}},
      {"overlapping",
       [](Editor& e) {
    e.integers("spans/begin", {1, 3});
       },
       {"overlap", "at least 4"}},
      {"the shorter of two with one begin first",
       [](Editor& e) {
    e.integers("spans/begin", {1, 1});
    e.integers("spans/end", {4, 9});
       },
       {"not ascending", "the longer"}},
      {"descending",
       [](Editor& e) {
    e.integers("spans/begin", {5, 1});
    e.integers("spans/end", {9, 4});
       },
       {"not ascending"}},
      {"fewer ends", [](Editor& e) { e.integers("spans/end", {4}); }, {"spans/end", "[2]"}},
      {"a plus",
       [](Editor& e) {
    e.texts("spans/name", {"a+b", "c"});
       },
       {"spans/name", "bad span name", "a+b"}},
      {"a comma",
       [](Editor& e) {
    e.texts("spans/name", {"a,b", "c"});
       },
       {"bad span name"}},
      {"an equals sign",
       [](Editor& e) {
    e.texts("spans/name", {"a=b", "c"});
       },
       {"bad span name"}},
      {"a blank",
       [](Editor& e) {
    e.texts("spans/name", {"a b", "c"});
       },
       {"bad span name", "white space"}},
      {"a newline",
       [](Editor& e) {
    e.texts("spans/name", {"a\nb", "c"});
       },
       {"bad span name"}},
      {"empty",
       [](Editor& e) {
    e.texts("spans/name", {"", "c"});
       },
       {"bad span name", "empty"}},
      {"a range",
       [](Editor& e) {
    e.texts("spans/name", {"a", "12-19"});
       },
       {"bad span name", "12-19", "range"}},
      {"twice",
       [](Editor& e) {
    e.texts("spans/name", {"a", "a"});
       },
       {"used twice"}},
      {"null",
       [](Editor& e) {
    e.texts("spans/name", {"a", nullptr});
       },
       {"spans/name", "null string"}},
      {"not UTF-8",
       [](Editor& e) {
    e.texts("spans/name", {"a", "\xC3"});
       },
       {"UTF-8"}},
      });
}
