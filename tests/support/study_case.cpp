#include "tests/support/study_case.hpp"

#include "io/trace_writer.hpp"
#include "tests/reference/reference.hpp"

namespace kvsim::test {

StudyCase::StudyCase(const RandomTraceShape& shape, const std::vector<Span>& spans,
                     const std::vector<std::string>& records,
                     const std::function<void(StudyOptions&)>& change, const std::string& later) {
  const auto trace = random_trace(shape);
  trace->info.spans = spans;
  TraceWriter writer(folder_ / "t.h5", trace->info);
  writer.write_layer(trace->layer);
  writer.commit();
  reader_ = std::make_unique<TraceReader>(folder_ / "t.h5", later);
  layer_ = reader_->read_layer(0);
  StudyOptions options;
  for (const std::string& record : records) options.records.push_back(Record::parse(record));
  options.budgets = {Budget::parse("0.5")};
  options.layers = {0};
  options.wo_steps = 1;
  options.save_keep = true;
  change(options);
  Study study(*reader_, options);
  const auto backend = make_cpu_backend();
  results_ = study.run(*backend);
}

std::vector<double> StudyCase::attention(int head, int64_t step) const {
  const int64_t row = info().first_step() + step;
  return reference::attention(layer_, head, reference::logits(layer_, head, row)).weight;
}

std::vector<double> StudyCase::importance(int head, int64_t step) const {
  std::vector<double> gain = attention(head, step);
  for (size_t i = 0; i < gain.size(); ++i)
    gain[i] *= reference::l1(
        reference::project(layer_, head, reference::value(layer_, head, static_cast<int64_t>(i))));
  return gain;
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
