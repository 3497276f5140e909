#include "tests/support/random_run.hpp"

#include <cmath>

#include "sim/policy/policy_run.hpp"

namespace kvsim::test {

std::vector<int> RandomRun::layer_indices() const { return info.layers; }

std::unique_ptr<RandomRun> random_run(const RandomTraceShape& shape, const std::vector<int>& layers,
                                      int model_layers) {
  auto run = std::make_unique<RandomRun>();
  for (size_t at = 0; at < layers.size(); ++at) {
    RandomTraceShape one = shape;
    one.seed = shape.seed * 1000 + at;
    one.probe = one.draft = true;
    auto trace = random_trace(one);
    if (at == 0) run->info = trace->info;
    run->layers.push_back(std::move(trace->layer));
  }
  run->info.num_layers = model_layers;
  run->info.layers = layers;
  for (size_t at = 0; at < layers.size(); ++at) {
    run->layers[at].info = &run->info;
    run->layers[at].layer = layers[at];
    if (at % 2 == 1 && shape.d >= 4) {  // turns neighbours, in half of a head, in its own way
      Rotation& own = run->info.layer_rope[layers[at]];
      own.interleaved = true;
      own.first = 1;
      own.attention_factor = 1.25;
      for (int64_t j = 0; j < shape.d / 4; ++j)
        own.inv_freq.push_back(0.9 / static_cast<double>(1 + j));
    }
    for (size_t r = 0; r < run->info.query_position.size();
         ++r)  // deeper layers have longer streams
      run->layers[at].residual_norm.push_back(
          static_cast<float>(1 + at) *
          (2 + std::abs(static_cast<float>(normal(shape.seed, 60 + at, r)))));
  }
  run->info.has_residual_norm = true;
  return run;
}

std::vector<std::string> MadeUpFiles::token_text() const {
  std::vector<std::string> texts;
  for (int i = 0; i < 4096; ++i) texts.push_back(i == 0 ? "<s>" : i % 5 == 3 ? "," : " word");
  return texts;
}

std::vector<LayerKept> kept_of(const RandomRun& run, const std::vector<std::string>& records,
                               const std::vector<std::string>& budgets, uint64_t seed,
                               const SideFiles& files) {
  std::vector<Record> parsed;
  for (const std::string& record : records) parsed.push_back(Record::parse(record));
  std::vector<Budget> amounts;
  for (const std::string& budget : budgets) amounts.push_back(Budget::parse(budget));
  check_records(parsed, amounts, run.info, run.layer_indices(), files);
  PolicyRun policies(std::move(parsed), std::move(amounts), run.info, run.layer_indices(), seed,
                     files);
  const auto backend = make_cpu_backend();
  if (policies.needs_survey()) {
    for (const LayerTrace& layer : run.layers) {
      LayerWork work(layer, *backend);
      policies.survey(work);
    }
    policies.finish_survey();
  }
  std::vector<LayerKept> kept;
  for (const LayerTrace& layer : run.layers) {
    LayerWork work(layer, *backend);
    kept.push_back(policies.select(work));
  }
  return kept;
}

}  // namespace kvsim::test
