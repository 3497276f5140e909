#include "sim/stages/allocate/allocate.hpp"
#include "sim/stages/protect/token_classes.hpp"

namespace kvsim::stages::allocate::fastgen {

const Declare class_recovery(
    "class_recovery", "number [0, 1] or none", "none",
    "share of its attention that a head's classes recover at least; none: as the budget asks",
    tested("0.5 0.95"));

constexpr size_t kSets = 5;      // special, + punctuation, + frequent, + local, everything
constexpr double kEqual = 1e-9;  // shares closer than this are one

/// Entries and share of a head with each of the sets, the smallest first.
struct Head {
  size_t layer = 0;
  int64_t owner = 0;
  std::array<int64_t, kSets> size{};
  std::array<double, kSets> recovered{};

  size_t cheapest(double least) const {
    size_t set = 0;
    while (set + 1 < kSets && recovered[set] < least) ++set;
    return set;
  }
  /// The first set after `set` that recovers more.
  size_t next(size_t set) const { return cheapest(recovered[set] + kEqual); }
};

/// The share of the scores of a head's candidates in a set; every entry counts the same where one
/// is negative or their sum is not positive and finite.
Head measure(const AllocationRequest& request, size_t at, int64_t owner) {
  const AllocationLayer& layer = request.layers[at];
  const ScoredLayer& scored = *layer.scored;
  const ClassOrder order = class_order(*request.settings, scored, owner, {0, request.entries});
  const auto row = layer.ranking->score->row(owner);
  std::vector<double> score(row.size(), 0.0);
  for (const uint32_t i : layer.ranking->order[owner]) score[i] = row[i];
  const double all = std::accumulate(score.begin(), score.end(), 0.0);
  const bool shares = all > 0 && std::isfinite(all) && *std::ranges::min_element(score) >= 0;
  const double total = shares ? all : static_cast<double>(request.entries);

  Head head{.layer = at, .owner = owner};
  std::vector<uint8_t> in(request.entries, 0);
  double sum = 0;
  int64_t size = 0;
  const auto add = [&](uint32_t i) {
    if (in[i]) return;
    in[i] = 1;
    ++size;
    sum += shares ? score[i] : 1;
  };
  for (const uint32_t i : layer.guaranteed[owner]) add(i);
  double most = 0;
  for (size_t set = 0, x = 0; set + 1 < kSets; ++set) {
    for (; static_cast<int64_t>(x) < order.ends[set]; ++x) add(order.entries[x]);
    most = std::clamp(sum / total, most, 1.0);
    head.size[set] = size;
    head.recovered[set] = most;
  }
  head.size[kSets - 1] = request.entries;
  head.recovered[kSets - 1] = 1;
  return head;
}

/// A head takes the next set when the share to recover rises above what it recovers.
struct Rise {
  double above = 0;
  size_t head = 0;
  size_t to = 0;
};

/// Sets of the largest share to recover whose sizes fit into `total`; heads of equal shares rise
/// together.
std::vector<size_t> as_budget_asks(const std::vector<Head>& heads, int64_t total) {
  std::vector<size_t> sets(heads.size(), 0);
  std::vector<Rise> rises;
  int64_t size = 0;
  for (size_t h = 0; h < heads.size(); ++h) {
    size += heads[h].size[0];
    for (size_t set = 0;
         heads[h].recovered[set] + kEqual <= 1;) {  // nothing recovers more than all
      const size_t to = heads[h].next(set);
      rises.push_back({heads[h].recovered[set], h, to});
      set = to;
    }
  }
  std::ranges::stable_sort(rises, {}, &Rise::above);
  for (size_t first = 0; first < rises.size();) {
    size_t last = first;
    std::vector<size_t> raised = sets;
    for (; last < rises.size() && rises[last].above <= rises[first].above + kEqual; ++last)
      raised[rises[last].head] = rises[last].to;
    int64_t then = 0;
    for (size_t h = 0; h < heads.size(); ++h) then += heads[h].size[raised[h]];
    if (then > total) break;
    sets = std::move(raised);
    first = last;
  }
  return sets;
}

/// FastGen: every head the smallest of its sets that recovers enough of its attention.
struct FastGen : Allocate {
  FastGen()
      : Allocate({"allocate", "fastgen",
                  "the smallest set of token classes that recovers enough of a head's attention",
                  "FastGen Eq. 1", "class_recovery class_frequent class_local", "tokens/text"}) {}
  bool needs_scores() const override { return true; }
  bool across_layers() const override { return true; }
  bool uses_token_classes() const override { return true; }
  bool spends_budget() const override { return false; }
  Table<int64_t> budgets(const AllocationRequest& request) const override {
    std::vector<Head> heads;
    for (size_t at = 0; at < request.layers.size(); ++at)
      for (int64_t owner = 0; owner < request.owners; ++owner)
        heads.push_back(measure(request, at, owner));
    const Settings& settings = *request.settings;
    std::vector<size_t> sets;
    if (settings.is_none(class_recovery)) {
      sets = as_budget_asks(heads, std::ssize(heads) * request.budget);
    } else {
      for (const Head& head : heads) sets.push_back(head.cheapest(settings.real(class_recovery)));
    }
    Table<int64_t> b(std::ssize(request.layers), request.owners);
    for (size_t h = 0; h < heads.size(); ++h)
      b(static_cast<int64_t>(heads[h].layer), heads[h].owner) = heads[h].size[sets[h]];
    return b;
  }
};
const Register<Allocate, FastGen> registered;

}  // namespace kvsim::stages::allocate::fastgen
