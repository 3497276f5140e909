#include "sim/stages/common_keys.hpp"

#include "sim/stages/indicator/indicator.hpp"
#include "sim/stages/merge/merge.hpp"

namespace kvsim {
namespace {

/// "0+1+5", "0+-1" (-1 is the last layer) or "none".
std::string layer_list_fault(std::string_view text) {
  bool digit = false;
  char before = '+';
  for (char c : text) {
    if (c == '+' && !digit) return "a layer index is missing before '+'";
    if (c != '+' && c != '-' && (c < '0' || c > '9'))
      return "layer indices are integers joined by '+'";
    if (c == '-' && before != '+') return "'-' stands before an index counted from the last layer";
    digit = c != '+' && c != '-';
    before = c;
  }
  return digit ? "" : "a layer index is missing";
}

}  // namespace

namespace keys {

const Declare granularity("granularity", "kv | query", "kv",
                          "who owns a kept set: a KV head or a query head", always, lets_nest);
const Declare rounding("rounding", "exact | kvpress", "exact",
                       "how a ratio becomes a count: exactly, or as kvpress does", always,
                       lets_nest);
const Declare tie("tie", "raw | recent", "raw",
                  "equal scores: by the score without its prior, or by recency alone", always,
                  only_with(selects_entries_if), lets_nest);
const Declare skip_layers("skip_layers", "text layers or none", "none",
                          "layers that keep everything, joined by +; -1 is the last", always,
                          checked_by(layer_list_fault), lets_nest, tested("2"));
const Declare positions("positions", "absolute | cache", "absolute",
                        "where kept keys stand: where they were, or closed up", always, lets_nest);

}  // namespace keys

}  // namespace kvsim
