// What every measure keeps to, whoever wrote it.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <set>

#include "analysis/dataset.hpp"
#include "analysis/measure.hpp"
#include "tests/support/study_case.hpp"

using namespace kvsim;
using namespace kvsim::test;

namespace {

/// A small run with every schedule, merging, and spans.
class SmallStudy {
 public:
  Dataset run(const std::set<std::string>& metrics) const {
    StudyOptions options = options_for(
        {"snapkv,window=4", "keepkv,window=4", "tova:official",
         "snapkv,window=4,schedule=periodic,period=12", "oracle-step", "quest,skip_layers=none"},
        {"0.3"}, trace_.info().layers);
    options.metrics = metrics;
    return study_of(trace_, options);
  }

 private:
  const SynthTrace trace_{{.prompt = 40,
                           .steps = 34,  // locality is defined from 32 on
                           .head_dim = 8,
                           .value_dim = 8,
                           .hidden = 16,
                           .spans = {{"head", 0, 10}, {"tail", 35, 40}}}};
};

/// Equal but for the last bits of float32, which depend on what else is replayed. True also says
/// that there is a number.
bool same_numbers(const Variable& alone, const Variable& among_all) {
  const auto* x = std::get_if<std::vector<double>>(&alone.values);
  if (x == nullptr) return alone.values == among_all.values;
  const auto& y = std::get<std::vector<double>>(among_all.values);
  REQUIRE(x->size() == y.size());
  bool defined = false;
  for (size_t i = 0; i < x->size(); ++i) {
    CHECK(std::isnan((*x)[i]) == std::isnan(y[i]));
    if (std::isnan((*x)[i])) continue;
    defined = true;
    CHECK((*x)[i] == Approx(y[i]).epsilon(1e-4).margin(1e-6));
  }
  return defined;
}

}  // namespace

TEST_CASE("a metric that is asked for alone says what it says among all", "[contract][measures]") {
  const SmallStudy study;
  const std::vector<std::string> metrics = metrics_on_request();
  const Dataset all = study.run({metrics.begin(), metrics.end()});
  for (const std::string& metric : metrics) {
    INFO(metric);
    const Dataset alone = study.run({metric});
    bool defined = false;
    for (const std::string& name : variables_of({metric})) {
      INFO(name);
      REQUIRE(alone.has(name));
      REQUIRE(all.has(name));
      defined |= same_numbers(alone.at(name), all.at(name));
    }
    CHECK(defined);
  }
}

TEST_CASE("variables that nobody asked for are not written", "[contract][measures]") {
  const SmallStudy study;
  const Dataset plain = study.run({});
  std::set<std::string> names;
  for (const Variable& variable : plain.variables()) names.insert(variable.name);
  for (const VariableDeclaration& variable : declared_variables()) {
    if (variable.when == nullptr) CHECK_FALSE(names.contains(variable.name));
    names.erase(variable.name);
  }
  CHECK(names.empty());  // and all that are written are declared
}

TEST_CASE("every measure that declares variables fills them, at a place of its own",
          "[contract][measures]") {
  std::set<int> places;
  for (const DeclareMeasure* measure : declared_measures()) {
    INFO(measure->info.name);
    CHECK(places.insert(measure->info.place).second);
    const bool measures = std::ranges::any_of(
        measure->variables, [](const VariableDeclaration& v) { return v.known == nullptr; });
    CHECK((measure->make != nullptr) == measures);
  }
}
