#include "run/study/study_measures.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "analysis/variables.hpp"
#include "sim/core/parallel.hpp"
#include "sim/policy/trace_check.hpp"

namespace kvsim {
namespace {

/// Dimensions, coordinates and undefined variables of a run.
Dataset empty_results(const RunShape& run) {
  Dataset dataset;
  for (const VariableDeclaration& declaration : declared_variables()) {
    if (!is_written(declaration, run)) continue;
    if (declaration.known == nullptr) {
      dataset.add(make_variable(declaration, dataset));
      continue;
    }
    VariableValues values = declaration.known(run);
    if (declaration.is_coordinate())
      dataset.add_dimension(
          declaration.name,
          std::visit([](const auto& v) { return static_cast<int64_t>(v.size()); }, values));
    Variable variable = make_variable(declaration, dataset);
    variable.values = std::move(values);
    dataset.add(std::move(variable));
  }
  return dataset;
}

MeasureNeeds together(const std::vector<std::unique_ptr<Measure>>& measures) {
  MeasureNeeds all;
  for (const auto& measure : measures) {
    const MeasureNeeds own = measure->needs();
    all.attention_columns = std::max(all.attention_columns, own.attention_columns);
    all.head_norms |= own.head_norms;
    all.rounding_norms |= own.rounding_norms;
    all.span_parts |= own.span_parts;
    all.slot_changes |= own.slot_changes;
    all.pairs |= own.pairs;
    all.epochs |= own.epochs;
  }
  return all;
}

/// visit(measure, variable) for all that the run writes.
template <class Visit>
void for_each_written(const RunShape& run, Visit visit) {
  for (const DeclareMeasure* measure : declared_measures())
    for (const VariableDeclaration& variable : measure->variables())
      if (is_written(variable, run)) visit(measure->info(), variable);
}

}  // namespace

std::vector<Record> records_beside(const RunShape& run) {
  std::vector<Record> records;
  for_each_written(run, [&](const MeasureInfo&, const VariableDeclaration& variable) {
    if (*variable.beside != '\0') records.push_back(Record::parse(variable.beside));
  });
  return records;
}

void check_measures(const RunShape& run, const SideFiles& files) {
  std::set<std::string> checked;
  for_each_written(run, [&](const MeasureInfo& measure, const VariableDeclaration&) {
    if (measure.observes == nullptr || !checked.insert(measure.name).second) return;
    for (const std::string& record : measure.observes())
      check_records({Record::parse(record)}, {Budget::parse("0.5")}, run.info, run.options.layers,
                    files, fmt::format(" of metric {}", measure.name));
  });
}

StudyMeasures::StudyMeasures(const RunShape& run, const SideFiles& files,
                             std::vector<int64_t> projected_steps)
    : dataset_(empty_results(run)), run_{run, files, std::move(projected_steps)} {
  for (const MeasureKind& kind : measure_kinds()) {
    const bool written = std::ranges::any_of(
        kind.declaration->variables(),
        [&](const VariableDeclaration& variable) { return dataset_.has(variable.name); });
    if (written) measures_.push_back(kind.make(run_));
  }
  needs_ = together(measures_);
}

PrefillOptions StudyMeasures::replay_options() const {
  PrefillOptions options;
  options.scope = run_.options.scope;
  options.norm = run_.options.importance;
  options.seed = run_.options.seed;
  options.slot_changes = needs_.slot_changes;
  options.pairs = needs_.pairs;
  if (needs_.span_parts)
    for (const SpanTokens& span : run_.spans) options.parts.push_back(span.ranges);
  if (!needs_.head_norms) options.output_steps = run_.projected_steps;
  return options;
}

Dataset StudyMeasures::finish() {
  MeasureResults results(dataset_);
  for (const auto& measure : measures_) measure->finish_run(results);
  return std::move(dataset_);
}

StudyMeasures::Layer::Layer(StudyMeasures& study, LayerWork& work, int64_t index,
                            const LayerReplay& replay, const std::vector<Record>& records)
    : study_(study), norms_(work, replay.count(), study.run_.projected_steps,
                            study.needs_.head_norms, study.needs_.rounding_norms),
      layer_{work, index, replay, records, study.run_.options.records.size(), norms_},
      results_(study.dataset_) {
  for (const auto& measure : study_.measures_) measure->start(layer_);
}

void StudyMeasures::Layer::see(const StepBlock& block) {
  if (block.full != nullptr)
    for (const auto& measure : study_.measures_) measure->see_full(*block.full);
  parallel_for(std::ssize(block.outcomes), [&](int64_t at) {  // each writes to its own series
    for (const auto& measure : study_.measures_)
      measure->see(block, block.outcomes[static_cast<size_t>(at)]);
  });
  norms_.add(block);
}

void StudyMeasures::Layer::see_epoch(LayerWork& prompt, const PrefillReplay& replay, size_t record,
                                     int64_t first_step) {
  if (record >= layer_.shown) return;
  const MeasuredEpoch epoch{prompt, layer_.index, replay, static_cast<int>(record), first_step};
  for (const auto& measure : study_.measures_) measure->see_epoch(epoch, results_);
}

void StudyMeasures::Layer::read_rows() {
  const TraceInfo& info = layer_.work.info();
  std::vector<Measure*> readers;
  for (const auto& measure : study_.measures_) {
    if (measure->needs().attention_columns == 0) continue;
    readers.push_back(measure.get());
    measure->start_rows(layer_);
  }
  if (readers.empty()) return;
  AttentionPass pass;
  pass.columns = study_.needs_.attention_columns;
  pass.positions = std::span(info.query_position).subspan(static_cast<size_t>(info.first_step()));
  pass.look_ahead = true;
  for_each_attention_block(layer_.work, pass, [&](const AttentionBlock& rows, int64_t first_step) {
    for (Measure* reader : readers) reader->see_rows(rows, first_step);
  });
}

void StudyMeasures::Layer::finish() {
  read_rows();
  for (const auto& measure : study_.measures_) measure->finish(layer_, results_);
}

}  // namespace kvsim
