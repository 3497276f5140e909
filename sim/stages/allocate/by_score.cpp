#include <ranges>

#include "sim/stages/allocate/allocate.hpp"
#include "sim/stages/stages.hpp"

namespace kvsim::keys {
const Declare allocate_score("allocate_score", "final | unweighted", "final",
                             "the score that heads compete with");
const Declare joint_depth("joint_depth", "number >= 0", "0",
                          "scores of layer l of L count exp(-joint_depth l/L) times",
                          tested("0.5 2"));
const Declare joint_stream("joint_stream", "number >= 0", "0",
                           "scores of a layer are divided by this power of the stream there",
                           tested("0.5 1"));
}  // namespace kvsim::keys

namespace kvsim::stages::allocate::by_score {

const Declare ada_floor("ada_floor", "number [0, 1]", "0.2",
                        "share of B that every head gets for sure", tested("0 0.35 1"));
const Declare ada_total("ada_total", "per-head | product", "per-head",
                        "total of a layer: heads * B, or floor(n * rho * heads)");
enum class AdaTotal { per_head, product };  // its words

/// One head's entries in the order in which it would keep them: that of their offers.
struct Queue {
  size_t layer = 0;
  int64_t owner = 0;
  std::vector<uint32_t> entries;  // not yet marked, best first
  std::vector<uint8_t> rank;      // 0 protected, 1 forced, 2 by score (layer-max only)
};

/// Score by which an entry of a queue competes (policies.md 10).
struct Offer {
  double score = 0;
  int rank = 2;
  double raw = 0;
  int64_t position = 0;
  size_t queue = 0;
  bool operator<(const Offer& other) const {  // a worse offer is smaller
    if (score != other.score) return score < other.score;
    if (rank != other.rank) return rank > other.rank;
    if (raw != other.raw) return raw < other.raw;
    if (position != other.position) return position < other.position;
    return queue > other.queue;
  }
};

/// Competition of many heads for one total.
class Competition {
 public:
  explicit Competition(const AllocationRequest& request)
      : Competition(request, std::vector<double>(request.layers.size(), 1.0)) {}
  /// `factors`: what scores of each layer count times.
  Competition(const AllocationRequest& request, std::vector<double> factors)
      : request_(request), budgets_(std::ssize(request.layers), request.owners),
        factors_(std::move(factors)) {}

  /// Every head is sure of its best max(|guaranteed|, floor) entries; the others compete.
  void mark(size_t layer, int64_t floor) {
    const AllocationLayer& one = request_.layers[layer];
    for (int64_t owner = 0; owner < request_.owners; ++owner) {
      const auto& sure = one.guaranteed[owner];
      Queue queue{.layer = layer, .owner = owner, .entries = {}, .rank = {}};
      std::vector<uint8_t> taken(request_.entries, 0);
      for (uint32_t i : sure) taken[i] = 1;
      auto marked = std::ssize(sure);
      for (uint32_t i : one.ranking->order[owner]) {
        if (taken[i]) continue;
        if (marked < floor)
          ++marked;
        else
          queue.entries.push_back(i);
      }
      budgets_(static_cast<int64_t>(layer), owner) = marked;
      given_ += marked;
      queues_.push_back(std::move(queue));
    }
  }

  /// Nothing is sure: guaranteed entries compete at the layer's largest candidate score.
  void enter_all(size_t layer) {
    const AllocationLayer& one = request_.layers[layer];
    double top = -INFINITY;
    for (int64_t owner = 0; owner < request_.owners; ++owner) {
      const auto& order = one.ranking->order[owner];
      if (!order.empty()) top = std::max(top, score(layer, owner, order.front()));
    }
    top_.resize(request_.layers.size());
    top_[layer] = top;
    for (int64_t owner = 0; owner < request_.owners; ++owner) {
      Queue queue{.layer = layer, .owner = owner, .entries = {}, .rank = {}};
      const auto& sure = one.guaranteed[owner];
      const auto guarded = static_cast<size_t>(one.guarded[owner]);
      std::vector<uint8_t> taken(request_.entries, 0);
      for (size_t at = 0; at < sure.size(); ++at) {
        taken[sure[at]] = 1;
        queue.entries.push_back(sure[at]);
        queue.rank.push_back(at < guarded ? 0 : 1);
      }
      const auto later = [](uint32_t a, uint32_t b) { return a > b; };
      const auto forced = queue.entries.begin() + static_cast<int64_t>(guarded);
      std::sort(queue.entries.begin(), forced, later);
      std::sort(forced, queue.entries.end(), later);
      for (uint32_t i : one.ranking->order[owner])
        if (!taken[i]) {
          queue.entries.push_back(i);
          queue.rank.push_back(2);
        }
      queues_.push_back(std::move(queue));
    }
  }

  /// The best of all queues together, until `total` are given.
  Table<int64_t> fill(int64_t total) {
    // Of each queue those before `begin` are in for sure and those from `end` on are out.
    std::vector<Range> open;
    for (const Queue& queue : queues_) open.push_back({0, std::ssize(queue.entries)});
    for (int64_t left = total - given_; left > 0;) {
      const auto longest = std::ranges::max_element(open, {}, &Range::size);
      if (longest->size() == 0) break;
      const auto of = static_cast<size_t>(longest - open.begin());
      const int64_t middle = longest->begin + longest->size() / 2;
      const Offer pivot = offer(of, middle);
      std::vector<int64_t> best;  // first of each queue that is worse than the pivot
      int64_t count = 0;
      for (size_t q = 0; q < open.size(); ++q) {
        const auto places = std::views::iota(open[q].begin, open[q].end);
        best.push_back(*std::ranges::partition_point(
            places, [&](int64_t at) { return !(offer(q, at) < pivot); }));
        count += best[q] - open[q].begin;
      }
      const bool all_in = count <= left;  // else not even the pivot
      if (all_in) left -= count;
      for (size_t q = 0; q < open.size(); ++q) (all_in ? open[q].begin : open[q].end) = best[q];
      if (!all_in) open[of].end = middle;
    }
    for (size_t q = 0; q < open.size(); ++q)
      budgets_(static_cast<int64_t>(queues_[q].layer), queues_[q].owner) += open[q].begin;
    return std::move(budgets_);
  }

 private:
  double score(size_t layer, int64_t owner, uint32_t i) const {
    return factors_[layer] * (*request_.layers[layer].ranking->score)(owner, i);
  }
  Offer offer(size_t q, int64_t at) const {
    const Queue& queue = queues_[q];
    const uint32_t i = queue.entries[at];
    const Ranking& ranking = *request_.layers[queue.layer].ranking;
    Offer made{.position = i, .queue = q};
    made.rank = queue.rank.empty() ? 2 : queue.rank[at];
    made.score = made.rank < 2 ? top_[queue.layer] : score(queue.layer, queue.owner, i);
    if (made.rank == 2 && ranking.raw) made.raw = (*ranking.raw)(queue.owner, i);
    return made;
  }

  const AllocationRequest& request_;
  Table<int64_t> budgets_;
  std::vector<Queue> queues_;    // layer by layer, owner by owner: the order of the last tie
  std::vector<double> factors_;  // per layer
  std::vector<double> top_;      // per layer, layer-max only
  int64_t given_ = 0;
};

bool protection_fills(const AllocationRequest& request) {
  for (const AllocationLayer& layer : request.layers)
    for (int64_t guarded : layer.guarded)
      if (guarded >= request.budget) return true;
  return false;
}

Table<int64_t> uniform_budgets(const AllocationRequest& request) {
  return Table<int64_t>(std::ssize(request.layers), request.owners, request.budget);
}

int64_t total_of(const AllocationRequest& request, int64_t layers) {
  return shared_total(request, request.owners * layers);
}

struct Ada : Allocate {
  Ada()
      : Allocate({"ada", "the heads of a layer compete for its total", "AdaKV Algorithm 1",
                  "ada_floor ada_total allocate_score"}) {}
  bool needs_scores() const override { return true; }
  Table<int64_t> budgets(const AllocationRequest& request) const override {
    const Decimal share = request.settings->decimal(ada_floor);
    int64_t floor = share.floor_times(request.budget);
    if (rounds_like_kvpress(*request.settings) && share.value() > 0)
      floor = std::max<int64_t>(1, floor);
    Table<int64_t> all(std::ssize(request.layers), request.owners);
    for (int64_t l = 0; l < std::ssize(request.layers); ++l) {
      AllocationRequest one = request;
      one.layers = {request.layers[l]};
      Table<int64_t> b;
      if (protection_fills(one)) {
        b = uniform_budgets(one);
      } else {
        Competition competition(one);
        competition.mark(0, floor);
        b = competition.fill(total_of(one, 1));
      }
      std::copy(b.row(0).begin(), b.row(0).end(), all.row(l).begin());
    }
    return all;
  }
};

struct Joint : Allocate {
  Joint()
      : Allocate({"joint", "all heads of all layers compete for one total",
                  "DefensiveKV Algorithm 2",
                  "ada_total allocate_score protected_rank joint_depth joint_stream"}) {}
  bool needs_scores() const override { return true; }
  bool across_layers() const override { return true; }
  bool needs_stream(const Settings& settings) const override {
    return settings.real(keys::joint_stream) != 0;
  }
  bool lets_protected_compete(const Settings& settings) const override {
    return settings.word<ProtectedRank>(keys::protected_rank) == ProtectedRank::layer_max;
  }
  Table<int64_t> budgets(const AllocationRequest& request) const override {
    if (protection_fills(request)) return uniform_budgets(request);
    const bool compete = lets_protected_compete(*request.settings);
    Competition competition(request, layer_factors(request));
    for (size_t l = 0; l < request.layers.size(); ++l)
      compete ? competition.enter_all(l) : competition.mark(l, 0);
    return competition.fill(total_of(request, std::ssize(request.layers)));
  }
};

/// Owners of one layer: `c` times as many entries, between the layer's best and a floor, and the
/// window.
std::vector<int64_t> interpolate(const AllocationRequest& request, size_t layer, int64_t c) {
  const Decimal share = request.settings->decimal(ada_floor);
  AllocationRequest one = request;
  one.layers = {request.layers[layer]};
  for (auto& sure_entries : one.layers[0].guaranteed) sure_entries.clear();
  Competition competition(one);
  competition.mark(0, 0);
  const Table<int64_t> best = competition.fill(request.owners * c);
  std::vector<int64_t> budgets;
  for (int64_t owner = 0; owner < request.owners; ++owner)
    budgets.push_back(request.window +
                      share.one_minus().half_even_times(best(0, owner), share.floor_times(c)));
  return budgets;
}

struct AdaInterpolate : Allocate {
  AdaInterpolate()
      : Allocate({"ada-interpolate", "between the layer's best entries and a floor", "AdaKV code",
                  "ada_floor allocate_score"}) {}
  bool spends_budget() const override { return false; }
  bool needs_scores() const override { return true; }
  Table<int64_t> budgets(const AllocationRequest& request) const override {
    const int64_t c = request.budget - request.window;
    if (c <= 0) return uniform_budgets(request);
    Table<int64_t> all(std::ssize(request.layers), request.owners);
    for (size_t l = 0; l < request.layers.size(); ++l)
      std::ranges::copy(interpolate(request, l, c), all.row(static_cast<int64_t>(l)).begin());
    return all;
  }
};

struct Lava : Allocate {
  Lava()
      : Allocate({"lava",
                  "layers by the entropy of their scores, heads between the best and a floor",
                  "LAVa", "ada_floor allocate_score"}) {}
  bool spends_budget() const override { return false; }
  bool needs_scores() const override { return true; }
  bool across_layers() const override { return true; }
  Table<int64_t> budgets(const AllocationRequest& request) const override {
    const int64_t c = request.budget - request.window;
    if (c <= 0) return uniform_budgets(request);
    const auto layers = std::ssize(request.layers);
    std::vector<double> entropies;
    for (const AllocationLayer& layer : request.layers) entropies.push_back(entropy(layer));
    const std::vector<int64_t> shares = apportion(layers * c, entropies,
                                                  request.entries - request.window);
    Table<int64_t> all(layers, request.owners);
    for (int64_t l = 0; l < layers; ++l)
      std::ranges::copy(interpolate(request, l, shares[l]), all.row(l).begin());
    return all;
  }

 private:
  static constexpr double kNoEntropy = 1e-9;  // one score has all of the sum, but for rounding

  /// Of the scores of all heads, brought to a sum of 1; what is not positive does not count.
  static double entropy(const AllocationLayer& layer) {
    double sum = 0, logs = 0;
    const Table<double>& scores = *layer.ranking->score;
    for (int64_t owner = 0; owner < scores.rows(); ++owner)
      for (const uint32_t i : layer.ranking->order[owner]) {
        const double s = scores(owner, i);
        if (!(s > 0)) continue;
        sum += s;
        logs += s * std::log(s);
      }
    const double entropy = sum > 0 && std::isfinite(sum) ? std::log(sum) - logs / sum : 0;
    return entropy < kNoEntropy ? 0 : entropy;
  }
};

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
      : Allocate({"fastgen",
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
const Register<Allocate, Ada, Joint, AdaInterpolate, Lava, FastGen> registered;

}  // namespace kvsim::stages::allocate::by_score

namespace kvsim {

int64_t shared_total(const AllocationRequest& request, int64_t heads) {
  using namespace stages::allocate::by_score;
  return request.settings->word<AdaTotal>(ada_total) == AdaTotal::product
             ? product_total(request, heads)
             : request.budget * heads;
}

/// Less in deeper layers, and less where the residual stream is long, since an error counts by the
/// stream it is added to. The stream is the geometric mean of what enters the layer and what enters
/// the next one of the run.
std::vector<double> layer_factors(const AllocationRequest& request) {
  const double depth = request.settings->real(keys::joint_depth);
  const double power = request.settings->real(keys::joint_stream);
  std::vector<double> factors;
  for (size_t l = 0; l < request.layers.size(); ++l) {
    const AllocationLayer& one = request.layers[l];
    factors.push_back(std::exp(-depth * one.layer / request.model_layers));
    if (power == 0) continue;
    const size_t next = std::min(l + 1, request.layers.size() - 1);
    const double stream = one.scored->stream_norm * request.layers[next].scored->stream_norm;
    factors.back() *= std::pow(stream, -power / 2);
  }
  return factors;
}

}  // namespace kvsim
