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

const Declare granularity{{.key = "granularity",
                           .place = 201,
                           .type = ValueType::word,
                           .fallback = "kv",
                           .meaning = "who owns a kept set: a KV head or a query head",
                           .words = {"kv", "query"},
                           .always = true,
                           .nests = nests_always}};
const Declare rounding{{.key = "rounding",
                        .place = 202,
                        .type = ValueType::word,
                        .fallback = "exact",
                        .meaning = "how a ratio becomes a count: exactly, or as kvpress does",
                        .words = {"exact", "kvpress"},
                        .always = true,
                        .nests = nests_always}};
const Declare tie{{.key = "tie",
                   .place = 203,
                   .type = ValueType::word,
                   .fallback = "raw",
                   .meaning = "equal scores: by the score without its prior, or by recency alone",
                   .words = {"raw", "recent"},
                   .always = true,
                   .only_with = {selects_entries_if},
                   .nests = nests_always}};
const Declare skip_layers{{.key = "skip_layers",
                           .place = 204,
                           .type = ValueType::text,
                           .fallback = "none",
                           .meaning = "layers that keep everything, joined by +; -1 is the last",
                           .unit = "layers",
                           .fault = layer_list_fault,
                           .may_be_none = true,
                           .always = true,
                           .test_values = {"2"},
                           .nests = nests_always}};
const Declare positions{{.key = "positions",
                         .place = 205,
                         .type = ValueType::word,
                         .fallback = "absolute",
                         .meaning = "where kept keys stand: where they were, or closed up",
                         .words = {"absolute", "cache"},
                         .always = true,
                         .nests = nests_always}};
const Declare order{{.key = "order",
                     .place = 531,
                     .type = ValueType::word,
                     .fallback = "asg",
                     .meaning = "order of smooth (s), aggregate (a) and group (g)",
                     .words = {"asg", "ags", "sag", "sga", "gas", "gsa"},
                     .always = true,
                     .only_with = {observes_if},
                     .nests = nests_always}};

const Declare sinks{{.key = "sinks",
                     .place = 601,
                     .type = ValueType::count,
                     .fallback = "0",
                     .meaning = "first entries that are protected",
                     .unit = "entries",
                     .always = true,
                     .only_with = {selects_entries_if},
                     .test_values = {"1", "3"},
                     .nests = nests_always}};
const Declare recent{{.key = "recent",
                      .place = 602,
                      .type = ValueType::share,
                      .fallback = "0",
                      .meaning = "newest entries that are protected, but scored all the same",
                      .unit = "entries",
                      .always = true,
                      .only_with = {selects_entries_if},
                      .test_values = {"2", "0.3"}}};
const Declare allocate_score{{.key = "allocate_score",
                              .place = 710,
                              .type = ValueType::word,
                              .fallback = "final",
                              .meaning = "the score that heads compete with",
                              .words = {"final", "unweighted"}}};

}  // namespace keys

}  // namespace kvsim
