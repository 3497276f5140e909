#include "tests/reference/policy_allocation.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>
#include <set>
#include <stdexcept>

#include "tests/reference/kinds.hpp"

namespace kvsim::reference {
/// Candidates of a head that are not in `taken`, best first.
std::vector<Entry> entries_of(const PolicyCase& c, const Scores& scores, size_t layer, size_t owner,
                              const std::vector<int64_t>& taken) {
  const bool unweighted = c.settings.is("allocate_score", "unweighted");
  const Row& score = (unweighted ? scores.unweighted : scores.final_score)[owner];
  const Row& raw = (unweighted ? scores.unweighted_raw : scores.final_raw)[owner];
  std::vector<Entry> entries;
  for (int64_t i = 0; i < c.n(); ++i) {
    const auto at = static_cast<size_t>(i);
    if (!scores.candidate[at] || std::find(taken.begin(), taken.end(), i) != taken.end()) continue;
    entries.push_back({.score = score[at],
                       .rank = 2,
                       .raw = c.settings.is("tie", "raw") ? raw[at] : 0,
                       .position = i,
                       .owner = owner,
                       .layer = layer});
  }
  std::sort(entries.begin(), entries.end());
  return entries;
}

Budgets same_for_owners(const PolicyCase& c, const std::vector<int64_t>& per_layer) {
  Budgets budgets;
  for (const int64_t b : per_layer)
    budgets.emplace_back(static_cast<size_t>(c.owners()), std::clamp<int64_t>(b, 0, c.n()));
  return budgets;
}

/// |P| and the entries of stage1=mass, before any budget is known.
Protected before_allocation(const PolicyCase& c, const Scores& scores, size_t owner) {
  Protected all;
  double exact = 1;  // nothing of it is ranked
  PolicyCase plain = c;
  if (!References<Stage1Reference>::of(c.settings).before_allocation)
    plain.settings.set("stage1", "none");  // runs afterwards
  const auto shares = shares_of(plain, c.entries(), nullptr);
  for (const Sure& sure :
       sure_entries(plain, scores, static_cast<int>(owner), shares, c.entries(), exact)) {
    all.guarded.insert(all.guarded.end(), sure.guarded.begin(), sure.guarded.end());
    all.forced.insert(all.forced.end(), sure.forced.begin(), sure.forced.end());
  }
  all.both = all.guarded;
  all.both.insert(all.both.end(), all.forced.begin(), all.forced.end());
  return all;
}

namespace {

/// Errors count by the square of 1 over the residual stream: its root mean square over the prompt.
double stream_norm(const PolicyCase& c, int layer) {
  for (const LayerTrace* one : c.layers) {
    if (one->layer != layer) continue;
    double sum = 0, count = 0;
    for (size_t r = 0; r < one->residual_norm.size(); ++r)
      if (c.info->query_position[r] < c.n())
        sum += std::pow(static_cast<double>(one->residual_norm[r]), -2.0), count += 1;
    return std::pow(sum / count, -0.5);
  }
  throw std::logic_error("no such layer");
}

}  // namespace

double joint_factor(const PolicyCase& c, const std::vector<Scores>& scores, size_t l) {
  const double depth = c.settings.real("joint_depth"), power = c.settings.real("joint_stream");
  const double factor = std::exp(-depth * scores[l].layer / c.info->num_layers);
  if (power == 0) return factor;
  const int next = l + 1 < scores.size() ? scores[l + 1].layer : scores[l].layer;
  return factor /
         std::pow(std::sqrt(stream_norm(c, scores[l].layer) * stream_norm(c, next)), power);
}

namespace {

/// The best entries of the open competition get the rest of the total.
void fill(const PolicyCase& c, std::vector<Entry> open, int64_t rest, Budgets& budgets,
          double& closest) {
  std::sort(open.begin(), open.end());
  const int64_t count = std::clamp<int64_t>(rest, 0, static_cast<int64_t>(open.size()));
  for (int64_t x = 0; x < count; ++x)
    ++budgets[open[static_cast<size_t>(x)].layer][open[static_cast<size_t>(x)].owner];
  std::vector<Place> ranked;
  for (const Entry& entry : open) ranked.push_back({entry.score, entry.raw});
  closest = std::min(closest, closest_at_cut(c, ranked, static_cast<size_t>(count)));
  const auto last = open.begin() + count;
  if (count > 0 && last != open.end() && last[-1].score == last->score &&
      equal_but_for_rounding(open, *last))
    closest = 0;
}

/// `ada` over one layer, `joint` over all: `scores` are those that compete for one total.
Budgets compete(const PolicyCase& c, const std::vector<Scores>& scores, int64_t floor,
                double& closest) {
  const auto owners = static_cast<size_t>(c.owners());
  const int64_t b = c.entries();
  const auto heads = static_cast<int64_t>(owners * scores.size());
  const int64_t total = c.settings.is("ada_total", "product")
                            ? (Rational(c.n()) * c.ratio() * Rational(heads)).floor()
                            : heads * b;
  const bool layer_max = c.settings.is("allocate", "joint") &&
                         c.settings.is("protected_rank", "layer-max");
  Budgets budgets(scores.size(), std::vector<int64_t>(owners, 0));
  std::vector<Entry> open;
  int64_t given = 0;
  for (size_t l = 0; l < scores.size(); ++l) {
    const double factor = c.settings.is("allocate", "joint") ? joint_factor(c, scores, l) : 1;
    std::vector<std::vector<Entry>> queues;
    double top = -INFINITY;
    for (size_t o = 0; o < owners; ++o)
      for (const Entry& entry : entries_of(c, scores[l], l, o, {}))
        top = std::max(top, factor * entry.score);
    for (size_t o = 0; o < owners; ++o) {
      const Protected sure = before_allocation(c, scores[l], o);
      if (static_cast<int64_t>(sure.guarded.size()) >= b)
        return Budgets(scores.size(), std::vector<int64_t>(owners, b));
      std::vector<Entry> entries = entries_of(c, scores[l], l, o, sure.both);
      for (Entry& entry : entries) entry.score *= factor;
      if (layer_max) {
        for (const int64_t i : sure.guarded)
          open.push_back({.score = top, .rank = 0, .position = i, .owner = o, .layer = l});
        for (const int64_t i : sure.forced)
          open.push_back({.score = top, .rank = 1, .position = i, .owner = o, .layer = l});
        open.insert(open.end(), entries.begin(), entries.end());
        continue;
      }
      const int64_t extra = std::clamp<int64_t>(floor - static_cast<int64_t>(sure.both.size()), 0,
                                                static_cast<int64_t>(entries.size()));
      budgets[l][o] = static_cast<int64_t>(sure.both.size()) + extra;
      given += budgets[l][o];
      open.insert(open.end(), entries.begin() + extra, entries.end());
    }
  }
  fill(c, std::move(open), total - given, budgets, closest);
  return budgets;
}

/// `shares`: c of every layer.
Budgets interpolate(const PolicyCase& c, const std::vector<Scores>& scores,
                    const std::vector<int64_t>& shares, double& closest) {
  const auto owners = static_cast<size_t>(c.owners());
  Budgets budgets;
  for (const Scores& layer : scores) {
    const int64_t left = shares[budgets.size()];
    Budgets best(1, std::vector<int64_t>(owners, 0));
    std::vector<Entry> open;
    for (size_t o = 0; o < owners; ++o)
      for (const Entry& entry : entries_of(c, layer, 0, o, {})) open.push_back(entry);
    fill(c, std::move(open), c.owners() * left, best, closest);
    const Rational floor = Rational::parse(c.settings.text("ada_floor"));
    for (int64_t& b : best[0])
      b = c.entries() <= c.window() ? c.entries()
                                    : c.window() + ((Rational(1) - floor) * Rational(b) +
                                                    Rational((floor * Rational(left)).floor()))
                                                       .half_even();
    budgets.push_back(best[0]);
  }
  return budgets;
}

Budgets ada_interpolate(const PolicyCase& c, const std::vector<int>&,
                        const std::vector<Scores>& scores, double& closest) {
  return interpolate(c, scores, std::vector<int64_t>(scores.size(), c.entries() - c.window()),
                     closest);
}

/// Layers by the entropy of all their heads' scores.
Budgets lava(const PolicyCase& c, const std::vector<int>&, const std::vector<Scores>& scores,
             double& closest) {
  const auto count = static_cast<int64_t>(scores.size());
  const int64_t left = std::max<int64_t>(c.entries() - c.window(), 0);
  Row entropies;
  for (const Scores& layer : scores) {
    Row positive;
    for (size_t o = 0; o < static_cast<size_t>(c.owners()); ++o)
      for (const Entry& entry : entries_of(c, layer, 0, o, {}))
        if (entry.score > 0) positive.push_back(entry.score);
    double sum = 0, entropy = 0;
    for (const double s : positive) sum += s;
    for (const double s : positive)
      if (std::isfinite(sum)) entropy -= s / sum * std::log(s / sum);
    entropies.push_back(entropy < 1e-9 ? 0 : entropy);
  }
  return interpolate(c, scores, apportion(count * left, entropies, c.n() - c.window()), closest);
}

int64_t pyramid(const PolicyCase& c, int layer) {
  const int64_t m = c.window(), n = c.n(), left = c.entries() - m, layers = c.info->num_layers;
  if (left <= 0 || n < 2 * left || layers == 1) return c.entries();
  int64_t low = (Rational(left) / Rational::parse(c.settings.text("pyramid_beta"))).floor();
  int64_t high = 2 * left - low;
  if (high >= n - m) {
    high = n - m;
    low = 2 * left - high;
  }
  const int64_t step = static_cast<int64_t>(
      std::floor(static_cast<double>(high - low) / static_cast<double>(layers - 1)));
  return m + high - layer * step;
}

/// In rationals, or in doubles like kvpress.
int64_t pyramid_kvpress(const PolicyCase& c, int layer) {
  const int64_t m = c.window(), n = c.n(), layers = c.info->num_layers;
  if (c.settings.is("rounding", "kvpress") && !c.is_count()) {
    const double r = (Rational(1) - c.ratio()).value();
    const double left = static_cast<double>(n) * (1.0 - r);
    double low = left / c.settings.real("pyramid_beta"), high = 2 * left - low;
    if (high >= static_cast<double>(n - m)) {
      high = static_cast<double>(n - m);
      low = 2 * left - high;
    }
    const bool fits = static_cast<double>(n) >= high && high >= low &&
                      low >= static_cast<double>(m);
    if (!fits) return std::max<int64_t>(1, std::llrint(left));
    return layers == 1 ? std::llrint(high)
                       : std::llrint(high - layer * ((high - low) / (layers - 1)));
  }
  const Rational left = c.is_count() ? Rational(c.entries()) : Rational(n) * c.ratio();
  Rational low = left / Rational::parse(c.settings.text("pyramid_beta"));
  Rational high = Rational(2) * left - low;
  if (Rational(n - m) <= high) {
    high = n - m;
    low = Rational(2) * left - high;
  }
  if (!(high <= Rational(n) && low <= high && Rational(m) <= low)) return left.half_even();
  if (layers == 1) return high.half_even();
  return (high - Rational(layer) * ((high - low) / Rational(layers - 1))).half_even();
}

double cosine_weight(const PolicyCase& c, int layer, const Scores&) {
  const double phi = c.settings.real("cosine_floor");
  const double angle = std::numbers::pi * layer / c.info->num_layers;
  return 0.2 + 0.8 * (phi + (1 - phi) * (1 + std::cos(angle)) / 2);
}

double cake_weight(const PolicyCase& c, int, const Scores& scores) {
  return std::pow(scores.entropy, 1 / c.settings.real("cake_tau1")) *
         std::pow(scores.variance, 1 / c.settings.real("cake_tau2"));
}

double d2o_weight(const PolicyCase&, int, const Scores& scores) {
  const Row& v = scores.summed_variance;
  const double low = *std::min_element(v.begin(), v.end());
  const double high = *std::max_element(v.begin(), v.end());
  double mean = 0;
  for (const double x : v) mean += (x - low) / (high - low + 1e-6) / static_cast<double>(v.size());
  return std::exp(-mean);
}

/// b of each layer by its weight, `fixed` of them for every layer.
AllocateReference by_weight(double (*weight)(const PolicyCase&, int layer, const Scores&),
                            int64_t (*fixed)(const PolicyCase&)) {
  return {[weight, fixed](const PolicyCase& c, const std::vector<int>& layers,
                          const std::vector<Scores>& scores, double&) {
    const int64_t kept = fixed(c);
    std::vector<int64_t> per_layer(layers.size(), c.entries());
    if (c.entries() > kept) {
      Row weights;
      for (size_t l = 0; l < layers.size(); ++l) weights.push_back(weight(c, layers[l], scores[l]));
      per_layer = apportion(static_cast<int64_t>(layers.size()) * (c.entries() - kept), weights,
                            c.n() - kept);
      for (int64_t& b : per_layer) b += kept;
    }
    return same_for_owners(c, per_layer);
  }};
}

/// b(l), a rule of the layer alone.
AllocateReference by_rule(int64_t (*rule)(const PolicyCase&, int layer)) {
  return {[rule](const PolicyCase& c, const std::vector<int>& layers, const std::vector<Scores>&,
                 double&) {
    std::vector<int64_t> per_layer;
    for (const int layer : layers) per_layer.push_back(rule(c, layer));
    return same_for_owners(c, per_layer);
  }};
}

/// Budgets of the file, whatever B.
Budgets from_table(const PolicyCase& c, const std::vector<int>& layers, const std::vector<Scores>&,
                   double&) {
  Budgets budgets;
  for (const int layer : layers) {
    budgets.emplace_back();
    for (int64_t o = 0; o < c.owners(); ++o)
      budgets.back().push_back(std::min(static_cast<int64_t>(c.table(layer, o)), c.n()));
  }
  return budgets;
}

Budgets ada(const PolicyCase& c, const std::vector<int>&, const std::vector<Scores>& scores,
            double& closest) {
  const Rational share = Rational::parse(c.settings.text("ada_floor"));
  int64_t floor = (share * Rational(c.entries())).floor();
  if (c.settings.is("rounding", "kvpress") && Rational(0) < share)
    floor = std::max<int64_t>(1, floor);
  Budgets budgets;
  for (const Scores& one : scores) budgets.push_back(compete(c, {one}, floor, closest)[0]);
  return budgets;
}

Budgets joint(const PolicyCase& c, const std::vector<int>&, const std::vector<Scores>& scores,
              double& closest) {
  return compete(c, scores, 0, closest);
}

Budgets duo(const PolicyCase& c, const std::vector<int>& layers, const std::vector<Scores>&,
            double&) {
  struct Gate {
    double gate;
    size_t layer;
    int64_t owner;
  };
  std::vector<Gate> gates;
  for (size_t l = 0; l < layers.size(); ++l)
    for (int64_t o = 0; o < c.owners(); ++o)
      gates.push_back({std::clamp(c.table(layers[l], o), 0.0, 1.0), l, o});
  std::stable_sort(gates.begin(), gates.end(),
                   [](const Gate& a, const Gate& b) { return a.gate < b.gate; });
  const auto heads = static_cast<int64_t>(gates.size());
  const int64_t small = std::min(c.n(), c.settings.count("sinks") + c.share("recent", c.entries()));
  int64_t streaming = 0;
  if (c.settings.is("streaming_share", "none")) {
    const auto total = [&] { return streaming * small + (heads - streaming) * c.n(); };
    while (streaming < heads && total() > heads * c.entries()) ++streaming;
  } else {
    streaming = (Rational::parse(c.settings.text("streaming_share")) * Rational(heads)).half_even();
  }
  Budgets budgets(layers.size(), std::vector<int64_t>(static_cast<size_t>(c.owners()), c.n()));
  for (int64_t x = 0; x < streaming; ++x) {
    const Gate& gate = gates[static_cast<size_t>(x)];
    budgets[gate.layer][static_cast<size_t>(gate.owner)] = small;
  }
  return budgets;
}

/// A set of a head of FastGen.
struct Option {
  int64_t size;
  double recovered;
};
constexpr double kEqualShares = 1e-9;

/// The distance that decides which set a head takes: of what sets recover from the share to
/// recover; where the budget says, from each other and from everything.
double closest_shares(const std::vector<std::vector<Option>>& heads, const std::string& recovery) {
  std::set<double> shares;
  for (const auto& options : heads)
    for (const Option& option : options) shares.insert(option.recovered);
  double closest = 1;
  if (recovery != "none") {
    for (const double share : shares)
      closest = std::min(closest, distance(share, std::stod(recovery)));
    return closest;
  }
  for (auto next = shares.begin(), last = next++; next != shares.end(); last = next++)
    if (*next - *last > kEqualShares) closest = std::min(closest, *next - *last);
  return closest;
}

/// FastGen: raise the share to recover in steps of all heads' shares, as far as the total allows.
Budgets fastgen(const PolicyCase& c, const std::vector<int>&, const std::vector<Scores>& scores,
                double& closest) {
  std::vector<std::vector<Option>> heads;
  for (const Scores& one : scores)
    for (int owner = 0; owner < c.owners(); ++owner) {
      const Row& score = one.final_score[static_cast<size_t>(owner)];
      const double total = std::accumulate(score.begin(), score.end(), 0.0);
      const double lowest = *std::min_element(score.begin(), score.end());
      const bool defined = lowest >= 0 && total > 0 && std::isfinite(total);
      if (const double unit = References<IndicatorReference>::of(c.settings).unit; unit > 0)
        closest = std::min(closest, std::fabs(lowest) / unit);  // rounding decides its sign
      const auto sure = before_allocation(c, one, static_cast<size_t>(owner)).both;
      std::set<int64_t> in(sure.begin(), sure.end());
      std::vector<Option> options;
      double most = 0;
      for (const auto& set : class_sets(c, one, owner, {0, c.n()}, closest)) {
        in.insert(set.begin(), set.end());
        double sum = 0;
        for (const int64_t i : in) sum += defined ? score[static_cast<size_t>(i)] : 1;
        most = std::clamp(sum / (defined ? total : static_cast<double>(c.n())), most, 1.0);
        options.push_back({static_cast<int64_t>(in.size()), most});
      }
      options.push_back({c.n(), 1});
      heads.push_back(options);
    }
  const auto chosen = [&](double least) {
    std::vector<int64_t> sizes;
    for (const auto& options : heads) {
      size_t set = 0;
      while (set + 1 < options.size() && options[set].recovered < least) ++set;
      sizes.push_back(options[set].size);
    }
    return sizes;
  };
  const std::string& recovery = c.settings.text("class_recovery");
  closest = std::min(closest, closest_shares(heads, recovery));
  std::vector<int64_t> sizes = chosen(0);
  if (recovery == "none") {
    std::set<double> thresholds;
    for (const auto& options : heads)
      for (const Option& option : options)
        if (option.recovered + kEqualShares <= 1)
          thresholds.insert(option.recovered + kEqualShares);
    for (const double least : thresholds) {
      const auto then = chosen(least);
      if (std::accumulate(then.begin(), then.end(), int64_t{0}) >
          static_cast<int64_t>(heads.size()) * c.entries())
        break;
      sizes = then;
    }
  } else {
    sizes = chosen(std::stod(recovery));
  }
  Budgets budgets;
  for (size_t l = 0; l < scores.size(); ++l)
    budgets.emplace_back(sizes.begin() + static_cast<int64_t>(l) * c.owners(),
                         sizes.begin() + static_cast<int64_t>(l + 1) * c.owners());
  return budgets;
}

int64_t nothing(const PolicyCase&) { return 0; }
int64_t window_of(const PolicyCase& c) { return c.window(); }

const References<AllocateReference> allocations{
    {"uniform", by_rule([](const PolicyCase& c, int) { return c.entries(); })},
    {"everything", by_rule([](const PolicyCase& c, int) { return c.n(); })},
    {"pyramid", by_rule(pyramid)},
    {"pyramid-kvpress", by_rule(pyramid_kvpress)},
    {"cosine", by_weight(cosine_weight, nothing)},
    {"d2o", by_weight(d2o_weight, nothing)},
    {"cake", by_weight(cake_weight, window_of)},
    {"ada", {ada}},
    {"joint", {joint}},
    {"ada-interpolate", {ada_interpolate}},
    {"lava", {lava}},
    {"duo", {duo}},
    {"table", {from_table}},
    {"fastgen", {fastgen}},
};

}  // namespace

PolicyResult run_policy(const PolicyCase& c) {
  PolicyResult result;
  const auto owners = static_cast<size_t>(c.owners());
  std::vector<int64_t> everything(static_cast<size_t>(c.n()));
  std::iota(everything.begin(), everything.end(), 0);
  const bool keeps_all = c.entries() >= c.n() || c.settings.is("allocate", "everything");
  if (keeps_all) {
    result.layers.assign(c.layers.size(), std::vector<Head>(owners, {everything, {}, 0}));
    return result;
  }
  if (c.settings.is("schedule", "chunked")) return run_in_chunks(c);
  PolicyResult unconstrained;
  if (c.settings.is("constrain", "debias")) {
    PolicyCase plain = c;
    plain.settings.set("constrain", "none");
    unconstrained = run_policy(plain);
    result.closest = unconstrained.closest;
  }
  std::vector<int> layers;
  std::vector<Scores> scores;
  for (const LayerTrace* layer : c.layers) {
    if (c.skips(layer->layer)) continue;
    layers.push_back(layer->layer);
    scores.push_back(score_layer(c, *layer));
  }
  unite_layers(c, scores);
  const Budgets budgets =
      References<AllocateReference>::of(c.settings).budgets(c, layers, scores, result.closest);
  std::vector<std::vector<int64_t>> before(owners, everything);
  size_t part = 0;
  for (size_t at = 0; at < c.layers.size(); ++at) {
    std::vector<Head> heads(owners, {everything, {}, 0});
    const bool skipped = c.skips(c.layers[at]->layer);
    for (size_t o = 0; o < owners && !skipped; ++o)
      heads[o] = select_head(c, scores[part], static_cast<int>(o), budgets[part][o], before[o],
                             unconstrained.layers.empty() ? nullptr : &unconstrained.layers[at][o],
                             result.closest);
    part += skipped ? 0 : 1;
    for (size_t o = 0; o < owners; ++o)
      if (c.settings.is("nested", "yes")) before[o] = heads[o].kept;
    result.layers.push_back(std::move(heads));
  }
  return result;
}

}  // namespace kvsim::reference
