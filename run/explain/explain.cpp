#include "run/explain/explain.hpp"

#include "analysis/formulas.hpp"
#include "analysis/statistics.hpp"
#include "run/study/study.hpp"
#include "sim/policy/policy_run.hpp"
#include "sim/policy/prepared_record.hpp"
#include "sim/policy/scoring.hpp"

namespace kvsim {
namespace {

/// The record with the keys of `change` ("key=value") in place of those that say how rows, heads
/// and the prior work now.
std::string changed(const Record& record, const std::vector<std::string>& change) {
  const std::string canonical = record.canonical();
  std::string text;
  for (size_t begin = 0; begin <= canonical.size();) {
    const size_t end = std::min(canonical.find(',', begin), canonical.size());
    const std::string part = canonical.substr(begin, end - begin);
    begin = end + 1;
    const std::string key = part.substr(0, part.find('='));
    const auto replaced = [&](const std::string& other) {
      return other.substr(0, other.find('=')) == key;
    };
    if (key == "single_row" || std::ranges::any_of(change, replaced)) continue;
    text += (text.empty() ? "" : ",") + part;
  }
  for (const std::string& part : change) text += "," + part;
  return Record::parse(text).canonical();
}

using Measures = FragilityMeasures<double>;

Measures measures(const Dataset& results, int64_t policy, int64_t budget) {
  Measures found;
  found.stream = results.has("stream_error_rms")
                     ? results.row("stream_error_rms", {policy, budget})[0]
                     : kUndefined;
  found.mean = mean(results.row("retained_importance_mean", {policy, budget}));
  found.min = minimum(results.row("retained_importance_min", {policy, budget}));
  found.outliers = 0;
  for (const double of_layer : results.row("outlier_count", {policy, budget}))
    found.outliers += of_layer;
  return found;
}

Band band(const std::vector<Measures>& rows, double Measures::*which) {
  std::vector<double> values;
  for (const Measures& row : rows) values.push_back(row.*which);
  return {minimum(values), percentile(values, 50), maximum(values)};
}

constexpr uint8_t kNoOwner = 255;  // the mask of policies whose owners are of the other kind

std::span<const uint8_t> mask_row(const Dataset& results, const char* name,
                                  const ExplainedCell& cell, int64_t owner) {
  return results.row<uint8_t>(name, {cell.policy, cell.budget, cell.layer, owner});
}

/// Scores of the record's stages in this layer; null when it keeps everything there.
std::shared_ptr<ScoredLayer> scores_of(const Dataset& results, const TraceReader& reader,
                                       LayerWork& work, const ExplainedCell& cell) {
  const auto& policies = results.texts("policy");
  const auto& labels = results.texts("budget_label");
  const std::vector<Budget> budgets = {Budget::parse(labels[cell.budget])};
  const std::vector<int> layers = {work.layer()};
  const Record policy = Record::parse(policies[cell.policy]);
  Preparation preparation(work.info(), layers, budgets);
  const PreparedRecord record = preparation.prepare(policy);
  const PreparedBudget& budget = record.budgets.at(0);
  if (budget.keeps_all || record.skips(work.layer())) return nullptr;
  const TraceFiles files(reader);
  check_served(reader, reader.info(), {policy}, budgets, layers);
  const ScorePlan& plan = preparation.plans().at(budget.plan);
  const auto seed = static_cast<uint64_t>(results.attribute_or<int64_t>("seed", 0));
  return score_layer(work, files, seed, {&plan}).front().at(budget.variant);
}

void add_score(ExplainedToken& token, const ScoredLayer* scored) {
  token.score = kUndefined;
  if (scored == nullptr || token.worst_head < 0 || token.worst_head >= scored->owners()) return;
  if (scored->candidate[token.position] == 0) return;
  const auto row = scored->score.row(token.worst_head);
  token.score = row[token.position];
  token.rank = 1;
  for (size_t i = 0; i < row.size(); ++i) {
    if (scored->candidate[i] == 0) continue;
    ++token.ranked;
    token.rank += row[i] > row[token.position];
  }
}

/// Adds up the importance of every entry and the part that its head did not keep.
class Losses {
 public:
  Losses(const Dataset& results, const ExplainedCell& cell, const std::string& mask, bool query,
         int64_t owners, int64_t entries)
      : per_query_head_(query), lost_(owners, entries, 0.0), importance_(1, entries, 0.0) {
    for (int64_t o = 0; o < owners; ++o) masks_.push_back(mask_row(results, mask.c_str(), cell, o));
  }

  void add(const AttentionBlock& block, const Table<float>& norms) {
    for (int x = 0; x < block.heads; ++x) {
      const int head = block.kv_head * block.heads + x;
      const auto owner = static_cast<size_t>(per_query_head_ ? head : block.kv_head);
      const float* const attention = block.attention_row(x, 0);
      for (int64_t i = 0; i < importance_.columns(); ++i) {
        const double importance = static_cast<double>(attention[i]) * norms(head, i);
        importance_(0, i) += importance;
        if (masks_[owner][i] != 1) lost_(static_cast<int64_t>(owner), i) += importance;
      }
    }
  }

  std::vector<ExplainedToken> tokens(double& retained) const {
    const auto row = importance_.row(0);
    const double total = std::accumulate(row.begin(), row.end(), 0.0);
    double kept = total;
    std::vector<ExplainedToken> tokens;
    for (int64_t i = 0; i < importance_.columns(); ++i) {
      ExplainedToken token;
      token.position = i;
      double most = 0;
      for (int64_t o = 0; o < lost_.rows(); ++o) {
        const uint8_t state = masks_[o][i];
        token.kept_heads += state == 1;
        token.merged_heads += state == 2;
        token.lost += lost_(o, i);
        if (lost_(o, i) > most) {
          most = lost_(o, i);
          token.worst_head = static_cast<int>(o);
        }
      }
      kept -= token.lost;
      token.importance = total > 0 ? importance_(0, i) / total : 0;
      token.lost = total > 0 ? token.lost / total : 0;
      tokens.push_back(token);
    }
    retained = retained_share(std::max(0.0, kept), total);
    return tokens;
  }

 private:
  bool per_query_head_;
  std::vector<std::span<const uint8_t>> masks_;
  Table<double> lost_;        ///< [owners][n]
  Table<double> importance_;  ///< [1][n]
};

void check_shape(const Dataset& results, const TraceReader& reader) {
  const TraceInfo& info = reader.info();
  const bool fits = results.size("position") == info.prompt_len &&
                    results.size("kv_head") == info.num_kv_heads &&
                    results.size("head") == info.num_query_heads;
  if (!fits)
    bad_data({"not the trace of these results", info.path,
              std::to_string(info.prompt_len) + " prompt entries",
              std::to_string(results.size("position")) + " and as many heads"});
}

/// Indices to look at in one dimension: the chosen one, or all.
Range range_of(const Dataset& results, const char* dimension, int64_t chosen) {
  return chosen >= 0 ? Range{chosen, chosen + 1} : Range{0, results.size(dimension)};
}

/// Where `sign` times a variable over policy, budget, step and, with `layers`, layer is largest
/// among the indices that `fixed` leaves open; `none` where it is not defined.
ExplainedCell largest(const Dataset& results, const char* variable, double sign, bool layers,
                      const ExplainedCell& fixed, ExplainedCell none) {
  const Range policies = range_of(results, "policy", fixed.policy);
  const Range budgets = range_of(results, "budget", fixed.budget);
  const Range steps = range_of(results, "step", fixed.step);
  const Range rows = layers ? range_of(results, "layer", fixed.layer)
                            : Range{fixed.layer, fixed.layer + 1};
  double most = -std::numeric_limits<double>::infinity();
  for (int64_t p = policies.begin; p < policies.end; ++p)
    for (int64_t b = budgets.begin; b < budgets.end; ++b)
      for (int64_t l = rows.begin; l < rows.end; ++l) {
        const auto row = layers ? results.row(variable, {p, b, l}) : results.row(variable, {p, b});
        for (int64_t t = steps.begin; t < steps.end; ++t) {
          if (!(sign * row[t] > most)) continue;  // so for NaN
          most = sign * row[t];
          none = {p, b, l, t};
        }
      }
  return none;
}

}  // namespace

FragilityGroup fragility_group(const Record& record) {
  FragilityGroup group;
  group.base = record.canonical();
  const Settings& settings = record.settings;
  if (!chosen<Queries>(settings).has_window() || settings.is_fraction("window")) return group;
  try {
    for (int64_t row = 0; row < settings.count("window"); ++row)
      group.singles.push_back(
          changed(record, {"aggregate=single", "single_row=" + std::to_string(row)}));
    group.max = changed(record, {"aggregate=max", "group=max"});
    group.defensive = changed(record, {"indicator=attention", "aggregate=max", "group=max",
                                       "prior=head-mean", "weight=projected-l1"});
    group.published =
        Record::parse("defensivekv:code,window=" + settings.text("window")).canonical();
  } catch (const Error&) {
    // Keys of its own aggregation mean nothing to another one: such a record has no group.
    group.singles.clear();
  }
  return group;
}

std::vector<FragilityGroup> fragility_groups(const std::vector<Record>& records) {
  std::vector<FragilityGroup> groups;
  for (const Record& record : records) {
    FragilityGroup group = fragility_group(record);
    if (!group.singles.empty()) groups.push_back(std::move(group));
  }
  return groups;
}

std::vector<FragilityRow> fragility_rows(const Dataset& results,
                                         const std::vector<FragilityGroup>& groups) {
  const auto& policies = results.texts("policy");
  const auto& labels = results.texts("budget_label");
  const auto index = [&](const std::string& policy) {
    const auto found = std::ranges::find(policies, policy);
    if (found == policies.end()) throw std::logic_error(policy + " is not in the results");
    return found - policies.begin();
  };
  std::vector<FragilityRow> rows;
  for (const FragilityGroup& group : groups)
    for (int64_t b = 0; b < std::ssize(labels); ++b) {
      std::vector<Measures> singles;
      for (const std::string& single : group.singles)
        singles.push_back(measures(results, index(single), b));
      FragilityRow& row = rows.emplace_back(
          FragilityRow{group.base,
                       labels[b],
                       {band(singles, &Measures::stream), band(singles, &Measures::mean),
                        band(singles, &Measures::min), band(singles, &Measures::outliers)},
                       {}});
      for (const auto& [name, record] : {std::pair{"as it is", &group.base},
                                         {"max over rows and heads", &group.max},
                                         {"defensive step", &group.defensive},
                                         {"defensivekv:code", &group.published}})
        row.others.emplace_back(name, measures(results, index(*record), b));
    }
  return rows;
}

ExplainedCell worst_cell(const Dataset& results, const std::string& path,
                         const ExplainedCell& fixed) {
  if (!results.has("kept_mask"))
    bad_data({.what = "the results do not say what became of each entry",
              .where = path,
              .hint = "kvsim replay --save-keep writes it"});
  const ExplainedCell lost = results.has("stream_error")
                                 ? largest(results, "stream_error", 1, false, fixed, fixed)
                                 : fixed;
  const ExplainedCell worst = largest(results, "retained_importance", -1, true, lost,
                                      {-1, -1, -1, -1});
  if (worst.policy < 0) bad_data({"no retained importance is defined there", path});
  return worst;
}

Explanation explain(const Dataset& results, const TraceReader& reader, const ExplainedCell& cell,
                    Backend& backend) {
  check_shape(results, reader);
  const auto& layers = results.values<int32_t>("layer");
  const auto& steps = results.values<int64_t>("step");
  std::set<int> probes;
  for (int p = 0; p < std::ssize(reader.info().probes); ++p) probes.insert(p);
  const LayerTrace trace = reader.read_layer(layers[cell.layer], false, probes);
  LayerWork work(trace, backend);
  Explanation result;
  result.per_query_head = mask_row(results, "kept_mask", cell, 0)[0] == kNoOwner;
  const std::string mask = result.per_query_head ? "kept_mask_query" : "kept_mask";
  result.heads = result.per_query_head ? work.query_heads() : work.kv_heads();
  Losses losses(results, cell, mask, result.per_query_head, result.heads, work.entries());
  const Table<float>& norms = work.projected_norms(options_of(results).importance);
  const std::vector<int64_t> positions = {steps[cell.step]};
  for_each_attention_block(work, {.positions = positions, .look_ahead = true},
                           [&](const AttentionBlock& block, int64_t) { losses.add(block, norms); });
  result.tokens = losses.tokens(result.retained);
  result.recorded = results.row("retained_importance",
                                {cell.policy, cell.budget, cell.layer})[cell.step];
  const std::shared_ptr<ScoredLayer> scored = scores_of(results, reader, work, cell);
  for (ExplainedToken& token : result.tokens) add_score(token, nullptr);
  for (const int64_t position : most_lost(result, 1000))
    add_score(result.tokens[position], scored.get());
  return result;
}

std::vector<int64_t> most_lost(const Explanation& explanation, int64_t count) {
  std::vector<int64_t> order;
  for (const ExplainedToken& token : explanation.tokens)
    if (token.lost > 0) order.push_back(token.position);
  std::ranges::stable_sort(order, [&](int64_t x, int64_t y) {
    return explanation.tokens[x].lost > explanation.tokens[y].lost;
  });
  order.resize(std::min(std::ssize(order), count));
  return order;
}

}  // namespace kvsim
