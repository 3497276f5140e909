#include <catch2/catch.hpp>

#include "tests/reference/reference.hpp"
#include "tests/sim/backend/backends.hpp"
#include "tests/support/plain_layer.hpp"
#include "tests/support/study_case.hpp"

using namespace kvsim;
using namespace kvsim::test;

TEST_CASE("the plain form of a layer is the reference of the tests", "[run][plain]") {
  const auto trace = random_trace({.softcap = 3, .sink = true});
  const int64_t n = trace->info.prompt_len;
  PlainSets sets(4, std::vector<bool>(static_cast<size_t>(n)));
  for (size_t h = 0; h < 4; ++h)
    for (size_t i = 0; i < sets[h].size(); ++i) sets[h][i] = (i * 7 + h / 2) % 3 == 0;
  const int64_t row = n + 4;
  const PlainMeasures plain = PlainLayer(trace->layer, {row}, false).measure(sets)[0];
  double all = 0, kept = 0;
  std::vector<double> whole(24), changed(24);
  for (int h = 0; h < 4; ++h) {
    const auto logits = reference::logits(trace->layer, h, row);
    const auto full = reference::attention(trace->layer, h, logits).weight;
    std::vector<bool> present(logits.size(), true);
    for (int64_t i = 0; i < n; ++i) {
      const auto at = static_cast<size_t>(i);
      present[at] = sets[static_cast<size_t>(h)][at];
      const double importance = full[at] *
                                reference::l1(reference::project(
                                    trace->layer, h, reference::value(trace->layer, h, i)));
      all += importance;
      if (present[at]) kept += importance;
    }
    const auto left = reference::attention(trace->layer, h, logits, present).weight;
    const auto z = reference::project(trace->layer, h, reference::output(trace->layer, h, full));
    const auto moved = reference::project(trace->layer, h,
                                          reference::output(trace->layer, h, left));
    for (size_t c = 0; c < z.size(); ++c) {
      whole[c] += z[c];
      changed[c] += moved[c] - z[c];
    }
  }
  CHECK(plain.retained_importance == Approx(kept / all).epsilon(1e-12));
  CHECK(plain.output_error == Approx(reference::l2(changed) / reference::l2(whole)).epsilon(1e-10));
}

TEST_CASE("a run agrees with plain code and with other instruction sets", "[run][plain]") {
  const std::vector<std::string> records = {"snapkv,window=8", "h2o"};
  const auto with = [](StudyOptions& o) {
    o.wo_steps = 0;
    o.save_keep = true;
  };
  const StudyCase study({}, {}, records, with);
  StudyOptions options = options_for(records, {"0.5"}, {0});
  with(options);
  const ForcedIsa forced("portable");
  const Dataset elsewhere = study_of(study.reader(), options);
  std::vector<int64_t> rows;
  for (int64_t step = 0; step < study.info().steps(); ++step)
    rows.push_back(study.info().first_step() + step);
  const PlainLayer layer(study.layer(), rows, false);
  const auto near = [](double found, double right) {
    return std::abs(found - right) <= 1e-4 * std::max({1.0, std::abs(found), std::abs(right)});
  };
  for (int64_t p = 0; p < std::ssize(records); ++p) {
    PlainSets sets;
    for (int h = 0; h < study.info().num_query_heads; ++h) {
      sets.emplace_back();
      for (int64_t i = 0; i < study.info().prompt_len; ++i)
        sets.back().push_back(study.kept(p, 0, h, i));
    }
    const std::vector<PlainMeasures> right = layer.measure(sets);
    for (const auto& [name, of] : {std::pair{"output_error", &PlainMeasures::output_error},
                                   {"retained_attention", &PlainMeasures::retained_attention},
                                   {"retained_importance", &PlainMeasures::retained_importance}}) {
      INFO(records[p] << " " << name);
      const auto row = study.results().row(name, {p, 0, 0}), other = elsewhere.row(name, {p, 0, 0});
      for (size_t t = 0; t < row.size(); ++t) {
        CHECK(near(row[t], right[t].*of));
        CHECK(near(row[t], other[t]));
      }
    }
  }
}
