#include "analysis/measure.hpp"

#include <algorithm>
#include <iterator>
#include <limits>
#include <set>
#include <span>
#include <sstream>
#include <stdexcept>

#include "sim/stages/common_keys.hpp"
#include "sim/stages/merge/merge.hpp"
#include "sim/stages/quantize/quantize.hpp"

namespace kvsim {
namespace {

std::vector<MeasureKind>& announced_kinds() {
  static std::vector<MeasureKind> kinds;
  return kinds;
}
std::vector<const DeclareMeasure*>& announced_declarations() {
  static std::vector<const DeclareMeasure*> declarations;
  return declarations;
}

template <class Test>
bool any_record(const RunShape& run, Test test) {
  return std::ranges::any_of(run.options.records,
                             [&](const Record& record) { return test(record.settings); });
}

template <class Item, class Info>
std::vector<Item> by_place(std::vector<Item> items, Info info) {
  std::ranges::sort(items, {}, [&](const Item& item) {
    return std::pair(info(item).place, std::string(info(item).name));
  });
  return items;
}

}  // namespace

const Condition kAlways{"always", [](const RunShape&) { return true; }};
const Condition kResidualNorm{"the trace has `residual_norm`",
                              [](const RunShape& run) { return run.info.has_residual_norm; }};
const Condition kSpans{"the trace has spans",
                       [](const RunShape& run) { return !run.spans.empty(); }};
const Condition kPerHead{"`--per-head`", [](const RunShape& run) { return run.options.per_head; }};
const Condition kSaveKeep{"`--save-keep`",
                          [](const RunShape& run) { return run.options.save_keep; }};
const Condition kQueryHeads{"a policy has `granularity=query`",
                            [](const RunShape& run) {
  return any_record(run, [](const Settings& s) { return per_query_head(s); });
                            }};
const Condition kQuantizes{"a policy quantises",
                           [](const RunShape& run) {
  return any_record(run, [](const Settings& s) { return quantizer(s).changes_entries(); });
                           }};
const Condition kMerges{"a policy merges", [](const RunShape& run) {
                          return any_record(run, [](const Settings& s) { return merges(s); });
                        }};

std::vector<std::string> VariableDeclaration::dim_names() const {
  std::istringstream words(dims);
  return {std::istream_iterator<std::string>(words), {}};
}

std::map<int, size_t> MeasuredLayer::outcomes_of(const Record& record) const {
  const std::string canonical = record.canonical();
  const auto found = std::ranges::find(records, canonical, &Record::canonical);
  if (found == records.end()) throw std::logic_error("not replayed: " + canonical);
  std::map<int, size_t> outcomes;
  for (size_t o = 0; o < replay.count(); ++o)
    for (const ReplayCell cell : replay.outcome(o).cells)
      if (cell.record == found - records.begin()) outcomes[cell.budget] = o;
  return outcomes;
}

std::vector<double> MeasuredLayer::stream_norms() const {
  const auto later =
      std::span(work.trace().residual_norm).subspan(static_cast<size_t>(work.info().first_step()));
  return {later.begin(), later.end()};
}

bool MeasureResults::has(const char* variable) const {
  static const auto names = [] {
    std::set<std::string_view> all;
    for (const DeclareMeasure* measure : declared_measures())
      for (const VariableDeclaration& one : measure->variables()) all.insert(one.name);
    return all;
  }();
  if (!names.contains(variable))
    throw std::logic_error("no measure declares a variable " + std::string(variable));
  return dataset_.has(variable);
}

DeclareMeasure::DeclareMeasure(MeasureInfo info, std::vector<VariableDeclaration> variables)
    : info_(info), variables_(std::move(variables)) {
  for (VariableDeclaration& variable : variables_) {
    if (info_.whole && variable.known == nullptr) variable.measures = {info_.name};
    if (info_.when != nullptr) variable.when = info_.when;
  }
  announced_declarations().push_back(this);
}

void announce_measure(MeasureKind kind) { announced_kinds().push_back(kind); }

const std::vector<MeasureKind>& measure_kinds() {
  static const auto kinds = by_place(
      announced_kinds(),
      [](const MeasureKind& kind) -> const auto& { return kind.declaration->info(); });
  return kinds;
}

const std::vector<const DeclareMeasure*>& declared_measures() {
  static const auto declarations = by_place(
      announced_declarations(),
      [](const DeclareMeasure* measure) -> const auto& { return measure->info(); });
  return declarations;
}

StepSeries::StepSeries(size_t outcomes, int64_t steps)
    : series_(outcomes, std::vector<double>(static_cast<size_t>(steps),
                                            std::numeric_limits<double>::quiet_NaN())) {}

std::span<double> StepSeries::part(int outcome, int64_t first, int64_t steps) {
  return std::span(series_[static_cast<size_t>(outcome)])
      .subspan(static_cast<size_t>(first), static_cast<size_t>(steps));
}

std::vector<double> over_heads(const Table<double>& heads) {
  std::vector<double> sum(static_cast<size_t>(heads.columns()), 0.0);
  for (int64_t h = 0; h < heads.rows(); ++h) {
    const auto row = heads.row(h);
    for (size_t s = 0; s < sum.size(); ++s) sum[s] += row[s];
  }
  return sum;
}

}  // namespace kvsim
