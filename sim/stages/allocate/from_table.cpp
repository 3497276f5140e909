#include "sim/stages/allocate/allocate.hpp"
#include "sim/stages/stages.hpp"

namespace kvsim::stages::allocate::from_table {

const Declare table("table", "file or none", "none",
                    "text file, one row per model layer, one number per head");
const Declare streaming_share("streaming_share", "number [0, 1] or none", "none",
                              "share of heads that stream; none: as the budget asks",
                              tested("0.3"));

Table<double> read(const AllocationRequest& request) {
  return request.files->table(request.settings->text(table), request.model_layers, request.owners);
}

struct TableAllocate : Allocate {
  using Allocate::Allocate;
  bool spends_budget() const override { return false; }
  void check_files(const Settings& settings, const SideFiles& files, int model_layers,
                   int64_t owners) const override {
    if (!settings.is_none(table)) files.table(settings.text(table), model_layers, owners);
  }
};

struct Duo : TableAllocate {
  Duo()
      : TableAllocate({"duo", "heads of low gate keep sinks and recent, the others all",
                       "DuoAttention", "table streaming_share", "the file `table`"}) {}
  bool across_layers() const override { return true; }
  Table<int64_t> budgets(const AllocationRequest& request) const override {
    const Table<double> gates = read(request);
    struct Head {
      double gate;
      int64_t layer, owner;
    };
    std::vector<Head> heads;
    for (int64_t l = 0; l < std::ssize(request.layers); ++l)
      for (int64_t owner = 0; owner < request.owners; ++owner)
        heads.push_back({std::clamp(gates(request.layers[l].layer, owner), 0.0, 1.0), l, owner});
    std::stable_sort(heads.begin(), heads.end(),
                     [](const Head& a, const Head& b) { return a.gate < b.gate; });
    const Settings& settings = *request.settings;
    const int64_t streaming = std::min(
        request.entries,
        settings.count(keys::sinks) + settings.share(keys::recent, request.budget));
    const auto count = std::ssize(heads);
    int64_t stream = 0;
    if (settings.is_none(streaming_share)) {
      const int64_t total = count * request.budget;
      while (stream < count && stream * streaming + (count - stream) * request.entries > total)
        ++stream;
    } else {
      stream = settings.decimal(streaming_share).half_even_times(count);
    }
    Table<int64_t> b(std::ssize(request.layers), request.owners, request.entries);
    for (int64_t at = 0; at < stream; ++at) {
      const Head& head = heads[at];
      b(head.layer, head.owner) = streaming;
    }
    return b;
  }
};

struct FromTable : TableAllocate {
  FromTable()
      : TableAllocate({"table", "numbers of the file `table`, whatever the budget", "kvsim",
                       "table", "the file `table`"}) {}
  bool ignores_budget() const override { return true; }
  Table<int64_t> budgets(const AllocationRequest& request) const override {
    const Table<double> rows = read(request);
    Table<int64_t> b(std::ssize(request.layers), request.owners);
    for (int64_t l = 0; l < std::ssize(request.layers); ++l)
      for (int64_t owner = 0; owner < request.owners; ++owner) {
        const double entry = rows(request.layers[l].layer, owner);
        if (entry < 0 || entry != std::floor(entry))
          bad_data({"a budget that is no whole number", request.settings->text(table),
                    shortest(entry), "an integer >= 0"});
        b(l, owner) = static_cast<int64_t>(std::min(entry, static_cast<double>(request.entries)));
      }
    return b;
  }
};

const Declare threshold("threshold", "number >= 0 score", "0.0001",
                        "entries of a larger score are kept", tested("0 0.01 0.5 1.5"));
const Declare threshold_of(
    "threshold_of", "score | mean | max", "score",
    "the threshold as it is, or times the mean or the largest score of the head");
enum class Of { score, mean, max };  // its words

/// Unit that `threshold` multiplies, of one head's candidates.
double unit(Of of, std::span<const double> scores, const std::vector<uint32_t>& order) {
  if (of == Of::score || order.empty()) return 1;
  if (of == Of::max) return scores[order.front()];
  double sum = 0;
  for (const uint32_t i : order) sum += scores[i];
  return sum / static_cast<double>(order.size());
}

struct Threshold : Allocate {
  Threshold()
      : Allocate({"threshold", "what exceeds a threshold, whatever the budget", "KVzap; kvsim",
                  "threshold threshold_of allocate_score"}) {}
  bool needs_scores() const override { return true; }
  bool ignores_budget() const override { return true; }
  bool spends_budget() const override { return false; }
  bool nests(const Settings&) const override { return true; }  // the same set at every budget
  Table<int64_t> budgets(const AllocationRequest& request) const override {
    const Settings& settings = *request.settings;
    Table<int64_t> all(std::ssize(request.layers), request.owners);
    for (int64_t l = 0; l < std::ssize(request.layers); ++l) {
      const AllocationLayer& layer = request.layers[l];
      for (int64_t owner = 0; owner < request.owners; ++owner) {
        const auto scores = layer.ranking->score->row(owner);
        const auto& order = layer.ranking->order[owner];
        const double least = settings.real(threshold) *
                             unit(settings.word<Of>(threshold_of), scores, order);
        const auto& sure = layer.guaranteed[owner];
        std::vector<uint8_t> taken(scores.size(), 0);
        for (const uint32_t i : sure) taken[i] = 1;
        all(l, owner) = std::ssize(sure) + std::ranges::count_if(order, [&](uint32_t i) {
                          return !taken[i] && scores[i] > least;
                        });
      }
    }
    return all;
  }
};

const Declare composite_first(
    "composite_first", "lifted | own", "lifted",
    "composites of the first layer are worth the best of any layer, or their own");
enum class First { lifted, own };  // its words

/// One rank of a layer: the entries that its heads have there, one of each, go or stay together.
struct Composite {
  double score = 0;
  size_t layer = 0;
  int64_t rank = 0;
};

/// Scores of the r-th best entries of a layer, mean over heads, [ranks]; `sure` of them are not to
/// be chosen: guaranteed entries of some head stand there.
struct LayerRanks {
  int64_t sure = 0;
  std::vector<double> score;
};

LayerRanks ranks_of(const AllocationLayer& layer, int64_t owners, int64_t entries, double factor) {
  LayerRanks ranks;
  for (const auto& guaranteed : layer.guaranteed)
    ranks.sure = std::max(ranks.sure, std::ssize(guaranteed));
  for (int64_t owner = 0; owner < owners; ++owner) {
    const auto& guaranteed = layer.guaranteed[owner];
    std::vector<uint8_t> taken(entries, 0);
    for (const uint32_t i : guaranteed) taken[i] = 1;
    std::vector<double> own(guaranteed.size(), 0.0);  // below `sure`, never looked at
    for (const uint32_t i : layer.ranking->order[owner])
      if (!taken[i]) own.push_back((*layer.ranking->score)(owner, i));
    if (owner == 0) ranks.score.assign(own.size(), 0.0);
    ranks.score.resize(std::min(ranks.score.size(), own.size()));
    for (size_t r = 0; r < ranks.score.size(); ++r)
      ranks.score[r] += factor * own[r] / static_cast<double>(owners);
  }
  return ranks;
}

/// No layer has a better composite at any rank than the first one.
void lift_first(std::vector<LayerRanks>& layers) {
  std::vector<double>& first = layers.front().score;
  for (const LayerRanks& layer : layers)
    for (size_t r = layer.sure; r < std::min(first.size(), layer.score.size()); ++r)
      first[r] = std::max(first[r], layer.score[r]);
}

struct CompositeTokens : Allocate {
  CompositeTokens()
      : Allocate({"composite", "layers compete with the mean over heads of the r-th best score",
                  "KVCompose",
                  "ada_total allocate_score joint_depth joint_stream composite_first"}) {}
  bool needs_scores() const override { return true; }
  bool across_layers() const override { return true; }
  bool needs_stream(const Settings& settings) const override {
    return settings.real(keys::joint_stream) != 0;
  }
  bool spends_budget() const override { return false; }  // no layer is left without an entry
  Table<int64_t> budgets(const AllocationRequest& request) const override {
    const auto count = std::ssize(request.layers);
    Table<int64_t> all(count, request.owners, request.budget);
    for (const AllocationLayer& layer : request.layers)
      for (const int64_t guarded : layer.guarded)
        if (guarded >= request.budget) return all;
    const std::vector<double> factors = layer_factors(request);
    std::vector<LayerRanks> layers;
    for (size_t l = 0; l < request.layers.size(); ++l)
      layers.push_back(ranks_of(request.layers[l], request.owners, request.entries, factors[l]));
    if (request.settings->word<First>(composite_first) == First::lifted) lift_first(layers);
    std::vector<int64_t> given;
    int64_t left = shared_total(request, count);
    std::vector<Composite> open;
    for (size_t l = 0; l < layers.size(); ++l) {
      given.push_back(layers[l].sure);
      left -= layers[l].sure;
      for (int64_t r = layers[l].sure; r < std::ssize(layers[l].score); ++r)
        open.push_back({layers[l].score[r], l, r});
    }
    left = std::clamp<int64_t>(left, 0, std::ssize(open));
    std::ranges::nth_element(open, open.begin() + left, [](const Composite& a, const Composite& b) {
      return std::tuple(-a.score, a.layer, a.rank) < std::tuple(-b.score, b.layer, b.rank);
    });
    for (int64_t k = 0; k < left; ++k) ++given[open[k].layer];
    for (int64_t l = 0; l < count; ++l)
      std::ranges::fill(all.row(l), std::max<int64_t>(1, given[l]));
    return all;
  }
};
const Register<Allocate, Duo, FromTable, Threshold, CompositeTokens> registered;

}  // namespace kvsim::stages::allocate::from_table
