#include "tests/support/study_case.hpp"

#include "tests/reference/reference.hpp"

namespace kvsim::test {

StudyOptions options_for(const std::vector<std::string>& records,
                         const std::vector<std::string>& budgets, const std::vector<int>& layers) {
  StudyOptions options;
  for (const std::string& record : records) options.records.push_back(Record::parse(record));
  for (const std::string& budget : budgets) options.budgets.push_back(Budget::parse(budget));
  options.layers = layers;
  options.wo_steps = 0;
  return options;
}

Dataset study_of(const TraceReader& reader, const StudyOptions& options) {
  const auto backend = make_cpu_backend();
  return Study(reader, options).run(*backend);
}

std::vector<double> importance_of(const LayerTrace& layer, int head, int64_t row) {
  std::vector<double> gain =
      reference::attention(layer, head, reference::logits(layer, head, row)).weight;
  for (size_t i = 0; i < gain.size(); ++i)
    gain[i] *= reference::l1(
        reference::project(layer, head, reference::value(layer, head, static_cast<int64_t>(i))));
  return gain;
}

StudyCase::StudyCase(const RandomTraceShape& shape, const std::vector<Span>& spans,
                     const std::vector<std::string>& records,
                     const std::function<void(StudyOptions&)>& change, const std::string& later) {
  const auto trace = random_trace(shape);
  trace->info.spans = spans;
  write_trace(folder_ / "t.h5", trace->info, {&trace->layer, 1});
  measure(records, change, later);
}

StudyCase::StudyCase(const SynthConfig& config, const std::vector<std::string>& records,
                     const std::function<void(StudyOptions&)>& change) {
  write_synth(config, folder_ / "t.h5");
  measure(records, change, {});
}

void StudyCase::measure(const std::vector<std::string>& records,
                        const std::function<void(StudyOptions&)>& change,
                        const std::string& later) {
  reader_ = std::make_unique<TraceReader>(folder_ / "t.h5", later);
  layer_ = reader_->read_layer(0);
  StudyOptions options = options_for(records, {"0.5"}, {0});
  options.wo_steps = 1;
  options.save_keep = true;
  change(options);
  results_ = study_of(*reader_, options);
}

std::vector<double> StudyCase::attention(int head, int64_t step) const {
  const int64_t row = info().first_step() + step;
  return reference::attention(layer_, head, reference::logits(layer_, head, row)).weight;
}

std::vector<double> StudyCase::importance(int head, int64_t step) const {
  return importance_of(layer_, head, info().first_step() + step);
}

bool StudyCase::kept(int64_t record, int64_t budget, int head, int64_t entry) const {
  if (results_.has("kept_mask_query")) {
    const auto mask = results_.row<uint8_t>("kept_mask_query", {record, budget, 0, head, entry})[0];
    if (mask != 255) return mask == 1;
  }
  const int64_t owner = head / info().group_size();
  return results_.row<uint8_t>("kept_mask", {record, budget, 0, owner, entry})[0] == 1;
}

}  // namespace kvsim::test
