#include "tests/support/small_run.hpp"

#include <cmath>
#include <stdexcept>

#include "sim/policy/prepared_record.hpp"
#include "sim/policy/scoring.hpp"
#include "sim/stages/kind.hpp"

namespace kvsim::test {
namespace {

constexpr double kUnseen = -60;  // e^-60 is nothing beside any weight that is written down

Tensor tensor_of(const std::vector<Vectors>& values) {
  const auto size = [](const auto& list) { return static_cast<int64_t>(list.size()); };
  Tensor tensor(ElementType::float32, {size(values), size(values.at(0)), size(values.at(0).at(0))});
  for (int64_t a = 0; a < tensor.dim(0); ++a)
    for (int64_t b = 0; b < tensor.dim(1); ++b)
      for (int64_t c = 0; c < tensor.dim(2); ++c)
        set_element(
            tensor, a, b, c,
            static_cast<float>(
                values[static_cast<size_t>(a)][static_cast<size_t>(b)][static_cast<size_t>(c)]));
  return tensor;
}

Vectors identity(size_t size) {
  Vectors rows(size, std::vector<double>(size, 0.0));
  for (size_t i = 0; i < size; ++i) rows[i][i] = 1;
  return rows;
}

}  // namespace

std::unique_ptr<RandomRun> SmallRun::build() const {
  const auto total = static_cast<size_t>(prompt + 1);
  auto run = std::make_unique<RandomRun>();
  std::vector<Vectors> k = keys;
  if (k.empty()) k.assign(static_cast<size_t>(kv_heads), identity(total));
  for (Vectors& head : k) head.resize(total, std::vector<double>(head[0].size(), 0.0));
  const size_t d = k[0][0].size();
  std::vector<int64_t> stored = positions;
  if (stored.empty()) stored = {prompt - 1, prompt};
  std::vector<Vectors> q(static_cast<size_t>(query_heads),
                         Vectors(stored.size(), std::vector<double>(d, 0.0)));
  for (size_t h = 0; h < weights.size(); ++h)
    for (size_t j = 0; j < stored.size(); ++j)
      for (size_t i = 0; i < d; ++i) {
        const bool written = j < weights[h].size() && i < weights[h][j].size();
        const double weight = written ? weights[h][j][i] : 1;
        q[h][j][i] = weight > 0 ? std::log(weight) : kUnseen;
      }
  std::vector<Vectors> v = values;
  if (v.empty()) v.assign(static_cast<size_t>(kv_heads), Vectors(total, {1.0}));
  for (Vectors& head : v) head.resize(total, std::vector<double>(head[0].size(), 0.0));
  std::vector<Vectors> wo = output;
  if (wo.empty()) wo.assign(static_cast<size_t>(query_heads), identity(v[0][0].size()));

  TraceInfo& info = run->info;
  info.model = "by hand";
  info.num_layers = layers.back() + 1;
  info.layers = layers;
  info.num_query_heads = query_heads;
  info.num_kv_heads = kv_heads;
  info.head_dim = static_cast<int64_t>(d);
  info.hidden_size = static_cast<int64_t>(wo[0][0].size());
  info.prompt_len = prompt;
  info.total_len = static_cast<int64_t>(total);
  info.attention_scale = 1;
  info.query_position = stored;
  info.spans = spans;
  for (const int index : layers) {
    LayerTrace layer;
    layer.info = &info;
    layer.layer = index;
    layer.scale = 1;
    layer.q = tensor_of(q);
    layer.k = tensor_of(k);
    layer.v = tensor_of(v);
    layer.wo = tensor_of(wo);
    run->layers.push_back(std::move(layer));
  }
  return run;
}

Settings settings_with(const std::string& changes) {
  Settings settings;
  for (const Parameter* p : parameters()) settings.set(p->key, p->fallback);
  for (size_t begin = 0; begin < changes.size();) {
    const size_t end = std::min(changes.find(',', begin), changes.size());
    const std::string cell = changes.substr(begin, end - begin);
    const size_t equals = cell.find('=');
    const Parameter* p = find_parameter(cell.substr(0, equals));
    if (!p) throw std::logic_error("no such key: " + cell);
    settings.set(p->key, canonical_value(*p, cell.substr(equals + 1)));
    begin = end + 1;
  }
  return settings;
}

std::shared_ptr<const ScoredLayer> scores_of(const RandomRun& run, const std::string& record,
                                             const std::string& budget, uint64_t seed,
                                             const SideFiles& files) {
  const std::vector<Budget> budgets = {Budget::parse(budget)};
  Preparation preparation(run.info, run.info.layers, budgets);
  const PreparedRecord prepared = preparation.prepare(Record::parse(record));
  const PreparedBudget& at = prepared.budgets.at(0);
  if (at.keeps_all) throw std::logic_error("nothing is scored at this budget");
  const ScorePlan& plan = preparation.plans().at(at.plan);
  const auto backend = make_cpu_backend();
  LayerWork work(run.layers.at(0), *backend);
  return score_layer(work, files, seed, {&plan}).front().at(at.variant);
}

std::vector<double> score_row(const RandomRun& run, const std::string& record,
                              const std::string& budget, int64_t owner, const SideFiles& files) {
  const auto scored = scores_of(run, record, budget, 0, files);
  std::vector<double> row;
  for (int64_t i = 0; i < scored->entries(); ++i)
    if (scored->candidate[static_cast<size_t>(i)]) row.push_back(scored->score(owner, i));
  return row;
}

std::vector<int> kept_entries(const RandomRun& run, const std::string& record,
                              const std::string& budget, int64_t owner, size_t layer,
                              const SideFiles& files) {
  const auto kept = kept_of(run, {record}, {budget}, 0, files);
  const auto& entries = kept[layer][0][0]->owners[static_cast<size_t>(owner)];
  return {entries.begin(), entries.end()};
}

}  // namespace kvsim::test
