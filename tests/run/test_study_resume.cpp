// A study that is stopped after any of its layers and goes on in another run.
#include <catch2/catch.hpp>
#include <cstring>
#include <filesystem>

#include "run/measures/variables.hpp"
#include "run/study/layer_store.hpp"
#include "run/study/study.hpp"
#include "run/trace/synth.hpp"
#include "sim/policy/presets.hpp"
#include "tests/io/trace_fixture.hpp"
#include "tests/support/random_records.hpp"

using namespace kvsim;
using namespace kvsim::test;
namespace fs = std::filesystem;

namespace {

/// Every preset that the trace serves, and combinations that carry much from layer to layer.
std::vector<std::string> many_records() {
  std::vector<std::string> texts = {"pyramidinfer,schedule=periodic,period=2",
                                    "cake,window=4,schedule=periodic,period=3",
                                    "layer-defensivekv,window=4,schedule=periodic,period=2",
                                    "keepkv,window=4,schedule=decode",
                                    "snapkv,window=4,kernel=1,group=layer-mean,nested=yes",
                                    "pyramidinfer,window=3",
                                    "snapkv,window=4,quantize=per-token",
                                    "adakv,granularity=query,window=4"};
  for (const Preset& preset : presets()) texts.push_back(preset_title(preset));
  for (const std::string& text : random_records(20, 3)) texts.push_back(text);
  return texts;
}

class Resumed {
 public:
  Resumed() {
    SynthConfig config;
    config.prompt = 40;
    config.steps = 6;
    config.num_layers = kLayers;
    config.head_dim = config.value_dim = 8;
    config.hidden = 16;
    config.spans = {{"head", 0, 10}, {"middle", 10, 20}, {"tail", 35, 40}};
    write_synth(config, folder / "t.h5");
    reader = std::make_unique<TraceReader>(folder / "t.h5");
    options.budgets = {Budget::parse("0.25"), Budget::parse("0.5"), Budget::parse("7")};
    options.layers = reader->info().layers;
    options.wo_steps = 0;
    options.save_keep = options.per_head = true;
    for (const std::string& metric : known_metrics()) options.metrics.insert(metric);
  }

  /// Adds records that the trace serves.
  void add(const std::vector<std::string>& texts) {
    for (const std::string& text : texts) {
      try {
        StudyOptions alone = options;
        alone.records = {Record::parse(text)};
        check_study(*reader, alone);
        options.records.push_back(alone.records.front());
      } catch (const Error&) {  // e.g. a side file that is not there
      }
    }
  }

  /// `done`: passes over a layer that need not be repeated.
  Dataset run(LayerStore* store, int64_t* done = nullptr) const {
    StudyHooks hooks;
    hooks.resumed = [&](int64_t passes, int64_t) {
      if (done != nullptr) *done = passes;
    };
    if (done != nullptr) *done = 0;
    const auto backend = make_cpu_backend();
    return Study(*reader, options, hooks).run(*backend, store);
  }
  LayerStore store(const std::string& key = "key", const std::string& device = "device") const {
    return {folder.path(), key, device};
  }
  std::string file(const char* pass, int64_t layer, const std::string& key = "key") const {
    return folder / (key + "-" + pass + "-" + std::to_string(layer) + ".layer");
  }

  static constexpr int kLayers = 4;
  TemporaryFolder folder;
  std::unique_ptr<TraceReader> reader;
  StudyOptions options;
};

void check_same(const Dataset& a, const Dataset& b) {
  REQUIRE(a.variables().size() == b.variables().size());
  for (size_t v = 0; v < a.variables().size(); ++v) {
    const Variable& one = a.variables()[v];
    const Variable& other = b.variables()[v];
    INFO(one.name);
    REQUIRE(one.values.index() == other.values.index());
    if (const auto* x = std::get_if<std::vector<double>>(&one.values)) {
      const auto& y = std::get<std::vector<double>>(other.values);
      REQUIRE(x->size() == y.size());  // as bytes: NaN equals NaN
      CHECK(std::memcmp(x->data(), y.data(), x->size() * sizeof(double)) == 0);
    } else {
      CHECK(one.values == other.values);
    }
  }
}

}  // namespace

TEST_CASE("a study goes on after any layer with the same data, whatever the policies", "[resume]") {
  Resumed study;
  study.add(many_records());
  REQUIRE(study.options.records.size() > 60);
  const Dataset whole = study.run(nullptr);
  LayerStore first = study.store();
  check_same(whole, study.run(&first));
  for (int l = 0; l < Resumed::kLayers; ++l) {
    REQUIRE(fs::exists(study.file("scores", l)));
    REQUIRE(fs::exists(study.file("replay", l)));
  }
  for (int64_t kept = 2 * Resumed::kLayers; kept >= 0; --kept) {
    LayerStore store = study.store();
    int64_t done = -1;
    check_same(whole, study.run(&store, &done));
    CHECK(done == kept);
    // The run has filled the gap: take away what comes after the next cut.
    for (int64_t pass = std::max<int64_t>(kept - 1, 0); pass < 2 * Resumed::kLayers; ++pass)
      fs::remove(pass < Resumed::kLayers ? study.file("scores", pass)
                                         : study.file("replay", pass - Resumed::kLayers));
  }
}

TEST_CASE("a layer that is damaged, stale or another's is worked on again", "[resume]") {
  Resumed study;
  study.add({"snapkv,window=4", "pyramidinfer", "cake,window=4", "h2o"});
  const Dataset whole = study.run(nullptr);
  LayerStore first = study.store();
  study.run(&first);
  const std::string third = read_bytes(study.file("replay", 2));
  const std::string scores = read_bytes(study.file("scores", 1));
  int64_t done = -1;
  const auto goes_on_with = [&](int64_t passes) {
    LayerStore store = study.store();
    check_same(whole, study.run(&store, &done));
    CHECK(done == passes);
  };
  // Layers 0 and 1 are replayed, 2 is not as it was, so that 3 cannot count either.
  for (const size_t place :
       {size_t{0}, size_t{31}, size_t{32}, third.size() / 2, third.size() - 1}) {
    std::string flipped = third;
    flipped[place] = static_cast<char>(flipped[place] ^ 1);
    write_bytes(study.file("replay", 2), flipped);
    goes_on_with(6);
    CHECK(read_bytes(study.file("replay", 2)) == third);  // mended
  }
  for (const size_t size : {size_t{0}, size_t{5}, size_t{32}, third.size() - 1}) {
    write_bytes(study.file("replay", 2), third.substr(0, size));
    goes_on_with(6);
  }
  write_bytes(study.file("replay", 2), third + "x");
  goes_on_with(6);
  write_bytes(study.file("replay", 2), read_bytes(study.file("replay", 1)));  // another layer
  goes_on_with(6);
  write_bytes(study.file("replay", 2), scores);  // another pass
  goes_on_with(6);
  write_bytes(study.file("replay", 2), third);
  for (int l = 0; l < Resumed::kLayers; ++l)  // another study's, under this one's name
    for (const char* pass : {"scores", "replay"})
      fs::copy_file(study.file(pass, l), study.file(pass, l, "other"));
  LayerStore other = study.store("other");
  check_same(whole, study.run(&other, &done));
  CHECK(done == 0);
  LayerStore elsewhere = study.store("key", "another processor");
  check_same(whole, study.run(&elsewhere, &done));
  CHECK(done == 0);
  goes_on_with(0);  // the other processor's layers are in its place now
  fs::remove(study.file("replay", 3));
  write_bytes(study.file("scores", 1), scores.substr(1));  // scores alone are asked for again
  goes_on_with(3 + 3);
}

TEST_CASE("a finished study's layers go, other studies' stay", "[resume]") {
  Resumed study;
  study.add({"snapkv,window=4"});
  LayerStore mine = study.store("mine"), other = study.store("other");
  study.run(&mine);
  study.run(&other);
  mine.clear();
  CHECK(!fs::exists(study.file("replay", 0, "mine")));
  CHECK(fs::exists(study.file("replay", 0, "other")));
  remove_layers(study.folder.path(), {"mine", "some"});
  CHECK(fs::exists(study.file("replay", 3, "other")));
  remove_layers(study.folder.path(), {"other"});
  CHECK(!fs::exists(study.file("replay", 3, "other")));
  CHECK(fs::exists(study.folder / "t.h5"));
}
