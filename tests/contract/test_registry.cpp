// What every policy keeps, whatever it is: over the whole table of presets, so that a new row is
// judged without a new test.
#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <set>

#include "sim/core/parallel.hpp"
#include "sim/policy/presets.hpp"
#include "sim/policy/record.hpp"
#include "sim/stages/kind.hpp"
#include "tests/support/random_records.hpp"
#include "tests/support/random_run.hpp"

namespace kvsim {
namespace {

/// A preset as a user would type it, with the file that it needs.
std::string typed(const Preset& preset) {
  std::string text = preset_title(preset);
  for (const std::string& file : file_keys(preset_settings(preset))) text += "," + file + "=FILE";
  return text;
}

std::vector<std::string> every_preset() {
  std::vector<std::string> records;
  for (const Preset& preset : presets()) records.push_back(typed(preset));
  return records;
}

/// The presets and some random records; none whose whitelist asks for a budget of its own.
std::vector<std::string> many_records(size_t random) {
  std::vector<std::string> records = every_preset();
  for (const std::string& record : test::random_records(random, 11))
    if (Record::parse(record).settings.is("whitelist", "none")) records.push_back(record);
  return records;
}

std::unique_ptr<test::RandomRun> run_of(int64_t n, uint64_t seed = 1) {
  auto run = test::random_run(
      {.d = 8, .dv = 6, .hidden = 10, .prompt = n, .later = 6, .seed = seed}, {0, 1, 3}, 4);
  run->info.rope.inv_freq.assign(4, 1.0);
  if (n >= 20) run->info.spans = {{"head", 0, n / 4}, {"middle", n / 4, n / 2}, {"tail", n - 5, n}};
  return run;
}

test::MadeUpFiles files_of(const test::RandomRun& run, const Settings& settings) {
  const int64_t owners = settings.is("granularity", "query") ? run.info.num_query_heads
                                                             : run.info.num_kv_heads;
  test::MadeUpFiles files;
  for (const int layer : run.info.layers) {
    Table<double> scores(owners, run.info.prompt_len);
    for (size_t i = 0; i < scores.values().size(); ++i)
      scores.values()[i] = test::normal(4, static_cast<uint64_t>(layer), i);
    files.layer_scores[layer] = scores;
  }
  files.rows = Table<double>(run.info.num_layers, owners);
  for (size_t i = 0; i < files.rows.values().size(); ++i)
    files.rows.values()[i] = static_cast<double>(i % 3);
  return files;
}

/// What a record keeps at each budget: [layer][budget].
using Kept = std::vector<std::vector<std::shared_ptr<const KeptSets>>>;

Kept kept_by(const test::RandomRun& run, const std::string& record,
             const std::vector<std::string>& budgets) {
  const auto files = files_of(run, Record::parse(record).settings);
  Kept kept;
  for (const LayerKept& layer : test::kept_of(run, {record}, budgets, 5, files))
    kept.push_back(layer[0]);
  return kept;
}

bool same(const Kept& a, const Kept& b) {
  for (size_t l = 0; l < a.size(); ++l)
    for (size_t x = 0; x < a[l].size(); ++x)
      if (a[l][x]->owners != b[l][x]->owners || a[l][x]->tied != b[l][x]->tied ||
          a[l][x]->guarded != b[l][x]->guarded)
        return false;
  return true;
}

void check_sets(const Kept& kept, int64_t n) {
  for (const auto& layer : kept)
    for (const auto& sets : layer)
      for (const auto& entries : sets->owners) {
        CHECK(std::adjacent_find(entries.begin(), entries.end(), std::greater_equal<>()) ==
              entries.end());  // strictly ascending: unique, too
        CHECK((entries.empty() || entries.back() < n));
      }
}

/// Places in the run's order of the layers that `skip_layers` leaves to the policy.
std::vector<size_t> layers_at_work(const test::RandomRun& run, const Settings& settings) {
  std::vector<size_t> places;
  const auto skipped = settings.list("skip_layers");
  for (size_t l = 0; l < run.info.layers.size(); ++l) {
    const auto is_this = [&](const std::string& text) {
      const int index = std::stoi(text);  // -1 is the model's last layer
      return (index < 0 ? index + run.info.num_layers : index) == run.info.layers[l];
    };
    if (std::none_of(skipped.begin(), skipped.end(), is_this)) places.push_back(l);
  }
  return places;
}

int64_t total_of(const Kept& kept, const std::vector<size_t>& layers, size_t b) {
  int64_t total = 0;
  for (const size_t l : layers)
    for (const auto& entries : kept[l][b]->owners) total += static_cast<int64_t>(entries.size());
  return total;
}

int64_t budget_of(const Settings& settings, const std::string& budget, int64_t n) {
  const Budget b = Budget::parse(budget);
  if (settings.is("rounding", "exact") || !b.is_ratio) return b.entries(n);
  return std::max<int64_t>(
      1, static_cast<int64_t>(static_cast<double>(n) * (1.0 - b.amount.one_minus().value())));
}

TEST_CASE("every policy keeps its budget, in sets that are ascending, unique and in range") {
  const auto run = run_of(33);
  const std::vector<std::string> budgets = {"0.03", "0.2", "0.5", "0.9", "1", "4", "17"};
  for (const std::string& record : many_records(40)) {
    CAPTURE(record);
    const Settings settings = Record::parse(record).settings;
    const Kept kept = kept_by(*run, record, budgets);
    check_sets(kept, 33);
    if (!spends_budget(settings)) continue;
    for (size_t b = 0; b < budgets.size(); ++b) {
      CAPTURE(budgets[b]);
      const std::vector<size_t> layers = layers_at_work(*run, settings);
      const auto heads = static_cast<int64_t>(kept[0][b]->owners.size() * layers.size());
      int64_t most = heads * budget_of(settings, budgets[b], 33);
      const Budget typed_budget = Budget::parse(budgets[b]);
      if (settings.is("ada_total", "product") && typed_budget.is_ratio)
        most = std::max(most, typed_budget.amount.floor_times(33 * heads));
      const int64_t total = total_of(kept, layers, b);
      CHECK(total <= most);
      // Nested layers may lack candidates; nothing else leaves places empty.
      if (!settings.flag("nested")) CHECK(total >= heads * budget_of(settings, budgets[b], 33));
    }
  }
}

TEST_CASE("a budget of the whole prompt keeps everything, whatever the policy") {
  const auto run = run_of(21);
  for (const std::string& record : many_records(40)) {
    CAPTURE(record);
    for (const auto& layer : kept_by(*run, record, {"1.0", "100%", "21", "500"}))
      for (const auto& sets : layer)
        for (const auto& entries : sets->owners) CHECK(entries.size() == 21);
  }
}

TEST_CASE("where a ranking is enough, smaller budgets keep part of what larger ones keep") {
  const auto run = run_of(33);
  const std::vector<std::string> budgets = {"1", "3", "0.2", "9", "0.5", "20", "0.9"};
  int claimed = 0;
  for (const std::string& record : many_records(120)) {
    if (!budgets_nest(Record::parse(record).settings)) continue;
    ++claimed;
    CAPTURE(record);
    for (const auto& layer : kept_by(*run, record, budgets))
      for (size_t b = 0; b + 1 < layer.size(); ++b)
        for (size_t o = 0; o < layer[b]->owners.size(); ++o) {
          const auto& few = layer[b]->owners[o];
          const auto& more = layer[b + 1]->owners[o];
          CHECK(std::includes(more.begin(), more.end(), few.begin(), few.end()));
        }
  }
  CHECK(claimed >= 30);
}

TEST_CASE("the number of threads changes nothing") {
  const int before = threads();
  const auto run = run_of(41);
  const std::vector<std::string> records = many_records(15);
  std::map<std::string, Kept> alone;
  for (const int count : {1, 2, 8}) {
    set_threads(count);
    for (const std::string& record : records) {
      CAPTURE(record, count);
      const Kept kept = kept_by(*run, record, {"0.1", "0.4", "0.8"});
      if (count == 1) alone[record] = kept;
      CHECK(same(kept, alone.at(record)));
    }
  }
  set_threads(before);
}

TEST_CASE("records of one run do not disturb each other") {
  const auto run = run_of(33);
  std::vector<std::string> records;
  for (const std::string& record : every_preset())
    if (file_keys(Record::parse(record).settings).empty())
      records.push_back(record);  // the others need files of their own shape
  const auto together = test::kept_of(*run, records, {"0.2", "0.6"}, 5);
  for (size_t at = 0; at < records.size(); ++at) {
    CAPTURE(records[at]);
    Kept mine;
    for (const LayerKept& layer : together) mine.push_back(layer[at]);
    CHECK(same(mine, kept_by(*run, records[at], {"0.2", "0.6"})));
  }
}

TEST_CASE("prompts of one, two and seven tokens are served") {
  for (const int64_t n : {1, 2, 7}) {
    const auto run = run_of(n);
    for (const std::string& record : every_preset()) {
      CAPTURE(record, n);
      const Kept kept = kept_by(*run, record, {"0.01", "0.5", "0.99", "1", "3"});
      check_sets(kept, n);
    }
  }
}

/// The same trace with other keys, values and queries from position n on.
std::unique_ptr<test::RandomRun> with_another_future(int64_t n) {
  auto run = run_of(n);
  for (LayerTrace& layer : run->layers) {
    const auto change = [](Tensor& tensor, int64_t first) {
      for (int64_t a = 0; a < tensor.dim(0); ++a)
        for (int64_t b = first; b < tensor.dim(1); ++b)
          for (int64_t c = 0; c < tensor.dim(2); ++c)
            test::set_element(tensor, a, b, c, 3.0f - 2 * test::element(tensor, a, b, c));
    };
    change(layer.k, n);
    change(layer.v, n);
    change(layer.q, run->info.first_step());
  }
  return run;
}

TEST_CASE("no policy but the oracles sees anything of the future") {
  const auto run = run_of(33), other = with_another_future(33);
  for (const Preset& preset : presets()) {
    const std::string record = typed(preset);
    CAPTURE(record);
    const std::vector<std::string> budgets = {"0.1", "0.4", "0.8"};
    const bool equal = same(kept_by(*run, record, budgets), kept_by(*other, record, budgets));
    CHECK(equal != preset.name.starts_with("oracle-"));  // what looks ahead does see it
  }
}

TEST_CASE("every kind's keys are declared, and every declared key is used") {
  std::set<std::string> used;
  for (const KindInfo* kind : all_kinds()) {
    CAPTURE(kind->stage, kind->name);
    const Parameter* stage = find_parameter(kind->stage);
    REQUIRE(stage);
    CHECK(stage->type == ValueType::kind);
    for (const std::string& key : kind->keys) {
      CAPTURE(key);
      CHECK(find_parameter(key));
      used.insert(key);
    }
    CHECK_FALSE(kind->meaning.empty());
  }
  for (const Preset& preset : presets()) used.merge(used_keys(preset_settings(preset)));
  for (const Parameter* p : parameters()) {
    CAPTURE(p->key);
    CHECK(used.contains(p->key));
    CHECK_FALSE(p->meaning.empty());
    CHECK(canonical_value(*p, p->fallback) == p->fallback);  // defaults are legal and canonical
  }
}

TEST_CASE("every stage has a kind that a record can choose") {
  for (const Parameter* p : parameters())
    if (p->type == ValueType::kind) CHECK_FALSE(kinds_of_stage(p->key).empty());
}

TEST_CASE("presets have names of their own, a summary, and cells that change something") {
  std::set<std::string> titles;
  Settings defaults;
  for (const Parameter* p : parameters()) defaults.set(p->key, p->fallback);
  for (const Preset& preset : presets()) {
    CAPTURE(preset_title(preset));
    CHECK(titles.insert(preset_title(preset)).second);
    CHECK_FALSE(preset.summary.empty());
    CHECK(find_preset(preset.name, ""));  // a variant has a bare preset
    CHECK(preset_settings(preset).values() != defaults.values());
  }
}

}  // namespace
}  // namespace kvsim
