#include "sim/stages/merge/merge.hpp"

namespace kvsim {
namespace keys {

const Declare block("block", "count >= 1 entries", "1",
                    "entries of a block, which stays or goes as a whole", always,
                    only_with(selects_entries_if), lets_nest, tested("2 4"));
const Declare block_score("block_score", "mean | max | root-mean-square", "mean",
                          "a block's score, of those of its entries", always,
                          only_with(selects_entries_if), lets_nest);

const Declare union_layers("union_layers", "flag", "no", "one set for all layers", lets_nest);

}  // namespace keys

double block_score_of(const Settings& settings, std::span<const double> entries) {
  const auto kind = settings.word<BlockScore>(keys::block_score);
  if (kind == BlockScore::max) return *std::ranges::max_element(entries);
  const bool squares = kind == BlockScore::root_mean_square;
  double sum = 0;
  for (const double s : entries) sum += squares ? s * s : s;
  sum /= static_cast<double>(entries.size());
  return squares ? std::sqrt(sum) : sum;
}

Range block_of(const Settings& settings, int64_t entry, int64_t entries) {
  const int64_t size = settings.count(keys::block);
  const int64_t begin = entry / size * size;
  return {begin, std::min(begin + size, entries)};
}

void score_blocks(const Settings& settings, Range candidates, Table<double>& scores) {
  if (settings.count(keys::block) == 1) return;
  for (int64_t owner = 0; owner < scores.rows(); ++owner)
    for (int64_t begin = candidates.begin; begin < candidates.end;) {
      const int64_t end = block_of(settings, begin, candidates.end).end;
      const auto own = scores.row(owner).subspan(begin, end - begin);
      std::ranges::fill(own, block_score_of(settings, own));
      begin = end;
    }
}

bool unites_layers(const Settings& settings) {
  return chosen<Union>(settings).unites() && settings.flag(keys::union_layers);
}

void unite_layers(const Settings& settings, const std::vector<ScoredLayer*>& layers) {
  for (Table<double> ScoredLayer::*const scores :
       {&ScoredLayer::score, &ScoredLayer::raw, &ScoredLayer::unweighted,
        &ScoredLayer::unweighted_raw}) {
    if ((layers.front()->*scores).empty()) continue;
    Table<double> united(std::ssize(layers), layers.front()->entries());
    for (int64_t l = 0; l < std::ssize(layers); ++l)
      std::ranges::copy((layers[l]->*scores).row(0), united.row(l).begin());
    for (const Segment& segment : layers.front()->segments)
      chosen<Union>(settings).apply(segment.candidates, united);
    for (ScoredLayer* const layer : layers)
      for (int64_t owner = 0; owner < layer->owners(); ++owner)
        std::ranges::copy(united.row(0), (layer->*scores).row(owner).begin());
  }
}

}  // namespace kvsim

namespace kvsim::stages::shape::shape {

const Declare key("union", "kind", "none", "one set for all heads of a layer");

/// One number of the heads' scores of an entry.
struct Fold : Union {
  using Of = double (*)(const std::vector<double>& heads);
  Fold(const char* name, const char* meaning, const char* source, Of of)
      : Union({name, meaning, source, "union_layers"}), of_(of) {}
  void apply(Range candidates, Table<double>& scores) const override {
    std::vector<double> heads(scores.rows());
    for (int64_t i = candidates.begin; i < candidates.end; ++i) {
      for (int64_t owner = 0; owner < std::ssize(heads); ++owner) heads[owner] = scores(owner, i);
      const double one = of_(heads);
      for (int64_t owner = 0; owner < scores.rows(); ++owner) scores(owner, i) = one;
    }
  }

 private:
  Of of_;
};

double mean_of(const std::vector<double>& heads) {
  return std::accumulate(heads.begin(), heads.end(), 0.0) / static_cast<double>(heads.size());
}
double largest_of(const std::vector<double>& heads) { return *std::ranges::max_element(heads); }
double root_mean_square_of(const std::vector<double>& heads) {
  double squares = 0;
  for (const double s : heads) squares += s * s;
  return std::sqrt(squares / static_cast<double>(heads.size()));
}

/// The union of what heads choose: their best entries, then their second best ones, ...
struct BestRank : Union {
  BestRank()
      : Union({"best-rank", "the best entries of every head, then the second best ones", "kvsim",
               "union_layers"}) {}
  void apply(Range candidates, Table<double>& scores) const override {
    std::vector<double> best(candidates.size(), -static_cast<double>(candidates.size()));
    for (int64_t owner = 0; owner < scores.rows(); ++owner) {
      auto order = ascending(candidates.size(), candidates.begin);
      const auto own = scores.row(owner);
      std::ranges::sort(order, best_first(own));
      for (size_t rank = 0; rank < order.size(); ++rank) {
        double& mine = best[order[rank] - candidates.begin];
        mine = std::max(mine, -static_cast<double>(rank));
      }
    }
    for (int64_t owner = 0; owner < scores.rows(); ++owner)
      std::ranges::copy(best, scores.row(owner).begin() + candidates.begin);
  }
};
const RegisterNone<Union> none("every head has its own set");
const Register<Union, BestRank> registered;
const bool folds_registered = [] {
  const auto add = [](auto... of) { Kinds<Union>::add(std::make_unique<Fold>(of...)); };
  add("mean", "by the mean over heads", "OpenVINO; KVCompose", mean_of);
  add("max", "by the largest over heads", "kvsim", largest_of);
  add("root-mean-square", "by the root of the mean square over heads", "kvsim",
      root_mean_square_of);
  return true;
}();

}  // namespace kvsim::stages::shape::shape
