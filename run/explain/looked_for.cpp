#include <fmt/format.h>

#include "run/explain/explain.hpp"

namespace kvsim {
namespace {

constexpr int64_t kRanks = 32;                      // entries per step and layer
constexpr int64_t kMostShares = int64_t{1} << 23;   // values of `share`: 64 MB
constexpr int64_t kMostPerHead = int64_t{1} << 23;  // values of retained_importance_head
constexpr int64_t kMostMask = int64_t{1} << 30;     // bytes of kept_mask

/// Loss at each step of one policy and budget, [T]; NaN where undefined.
std::vector<double> step_losses(const Dataset& results, int64_t policy, int64_t budget) {
  if (results.has("stream_error")) {
    const auto row = results.row("stream_error", {policy, budget});
    return {row.begin(), row.end()};
  }
  std::vector<double> losses(results.size("step"), 0.0);
  for (int64_t l = 0; l < results.size("layer"); ++l) {
    const auto row = results.row("retained_importance", {policy, budget, l});
    for (size_t t = 0; t < losses.size(); ++t) losses[t] -= row[t];
  }
  return losses;
}

void add_variable(Dataset& dataset, const char* name, std::vector<std::string> dims,
                  VariableValues values, const char* meaning) {
  dataset.add({.name = name,
               .dims = std::move(dims),
               .units = "1",
               .long_name = meaning,
               .flags = {},
               .values = std::move(values)});
}

/// A dimension with its coordinate, as every dimension of a file has one.
void add_axis(Dataset& dataset, const char* name, std::vector<int64_t> values,
              const char* meaning) {
  dataset.add_dimension(name, std::ssize(values));
  add_variable(dataset, name, {name}, std::move(values), meaning);
}

/// Importance of some steps in one layer, and the entries that have most of it.
class LayerShares {
 public:
  LayerShares(Dataset& target, int64_t layer, int64_t heads, int64_t entries)
      : target_(target), layer_(layer), heads_(heads), entries_(entries) {}

  void add(const AttentionBlock& block, const Table<float>& norms, int64_t first_row) {
    const int64_t rows = block.rows;
    if (block.kv_head == 0) importance_.assign(heads_ * rows * entries_, 0.0F);
    for (int x = 0; x < block.heads; ++x) {
      const int64_t head = int64_t{block.kv_head} * block.heads + x;
      for (int64_t r = 0; r < rows; ++r) {
        const float* const attention = block.attention_row(x, r);
        float* const out = row(head, r, rows);
        for (int64_t i = 0; i < entries_; ++i) out[i] = attention[i] * norms(head, i);
      }
    }
    if (int64_t{block.kv_head + 1} * block.heads < heads_) return;
    for (int64_t r = 0; r < rows; ++r) finish_row(r, rows, first_row + r);
  }

 private:
  float* row(int64_t head, int64_t r, int64_t rows) {
    return importance_.data() + (head * rows + r) * entries_;
  }

  void finish_row(int64_t r, int64_t rows, int64_t step) {
    std::vector<double> pooled(entries_, 0.0);
    for (int64_t h = 0; h < heads_; ++h) {
      const float* const own = row(h, r, rows);
      for (int64_t i = 0; i < entries_; ++i) pooled[i] += own[i];
    }
    const double total = std::accumulate(pooled.begin(), pooled.end(), 0.0);
    auto order = ascending<int64_t>(std::ssize(pooled));
    const auto chosen = target_.row<int64_t>("entry", {layer_, step});
    const auto count = std::min(order.size(), chosen.size());
    const auto more = [&](int64_t a, int64_t b) {
      const double x = pooled[a], y = pooled[b];
      return x != y ? x > y : a < b;
    };
    std::partial_sort(order.begin(), order.begin() + static_cast<ptrdiff_t>(count), order.end(),
                      more);
    for (size_t k = 0; k < count && total > 0; ++k) {
      chosen[k] = order[k];
      for (int64_t h = 0; h < heads_; ++h)
        target_.row("share", {layer_, h, step})[k] = row(h, r, rows)[order[k]] / total;
    }
  }

  Dataset& target_;
  int64_t layer_;
  int64_t heads_;
  int64_t entries_;
  std::vector<float> importance_;  ///< [Hq][rows][n] of the rows at hand
};

/// The record of the results once more for some policies, by number: with kept sets, and per head
/// where that stays small.
StudyOptions same_record(const Dataset& results, const std::vector<int64_t>& policies,
                         bool per_head) {
  StudyOptions options;
  const auto& records = results.texts("policy");
  for (const int64_t policy : policies) options.records.push_back(Record::parse(records[policy]));
  for (const std::string& label : results.texts("budget_label"))
    options.budgets.push_back(Budget::parse(label));
  for (const int32_t layer : results.values<int32_t>("layer")) options.layers.push_back(layer);
  options.seed = static_cast<uint64_t>(results.attribute_or<int64_t>("seed", 0));
  const StudyOptions measured = options_of(results);
  options.scope = measured.scope;
  options.importance = measured.importance;
  options.wo_steps = 1;  // errors are in the results already
  options.save_keep = true;
  options.per_head = per_head;
  return options;
}

int64_t product(const Dataset& results, std::initializer_list<const char*> dimensions) {
  int64_t result = 1;
  for (const char* dimension : dimensions) result *= results.size(dimension);
  return result;
}

/// The policies that can be replayed once more, by number; of the others a message says why not. A
/// function in Python can be replayed by the process that has it alone.
std::vector<int64_t> replayable(const Dataset& results, const TraceReader& reader,
                                const StudyHooks& hooks) {
  const auto& records = results.texts("policy");
  std::vector<int64_t> found;
  for (int64_t p = 0; p < results.size("policy"); ++p) {
    try {
      const Study study(reader, same_record(results, {p}, false), {});
      found.push_back(p);
    } catch (const Error& error) {
      const std::string& record = records[p];
      hooks.message(fmt::format("{}: not replayed for the page, so that it lacks what was not "
                                "saved: {}",
                                record,
                                record.starts_with("python:")
                                    ? "a function in Python; --save-keep and --per-head save it"
                                    : error.what()));
    }
  }
  return found;
}

/// Copies a variable with its dimensions. Its policies are these of the results: real numbers are
/// NaN at the others.
void copy(const Dataset& from, const char* name, const std::vector<int64_t>& policies,
          const Dataset& results, Dataset& to) {
  const Variable* found = from.find(name);
  if (found == nullptr) return;
  for (const std::string& dimension : found->dims) {
    if (to.has_dimension(dimension)) continue;
    const Dataset& source = dimension == "policy" ? results : from;
    to.add_dimension(dimension, source.size(dimension));
    to.add(source.at(dimension));
  }
  if (std::ssize(policies) == results.size("policy")) {
    to.add(*found);
    return;
  }
  Variable all = *found;
  const auto& some = std::get<std::vector<double>>(found->values);
  const size_t size = some.size() / policies.size();
  std::vector<double> values(size * static_cast<size_t>(results.size("policy")), kUndefined);
  for (size_t k = 0; k < policies.size(); ++k)
    std::copy_n(some.begin() + static_cast<ptrdiff_t>(k * size), size,
                values.begin() + static_cast<ptrdiff_t>(static_cast<size_t>(policies[k]) * size));
  all.values = std::move(values);
  to.add(std::move(all));
}

void add_kept_sets(Dataset& details, const Dataset& results, const TraceReader& reader,
                   Backend& backend, const StudyHooks& hooks) {
  const int64_t mask = product(results, {"policy", "budget", "layer", "head"}) *
                       reader.info().prompt_len;
  const bool per_head = !results.has("retained_importance_head") &&
                        product(results, {"policy", "budget", "layer", "head", "step"}) <=
                            kMostPerHead;
  if (results.has("kept_mask") && !per_head) return;
  if (!results.has("kept_mask") && mask > kMostMask) {
    hooks.message(fmt::format("kept sets left out: they would take {} MB", mask >> 20));
    return;
  }
  const std::vector<int64_t> policies = replayable(results, reader, hooks);
  if (policies.empty()) return;
  const bool all = std::ssize(policies) == results.size("policy");
  if (!all && !results.has("kept_mask"))
    hooks.message("kept sets left out: not every policy can be replayed, and --save-keep was not "
                  "given");
  if (!all && !per_head) return;
  try {
    Study study(reader, same_record(results, policies, per_head),
                {.message = {}, .progress = hooks.progress});
    const Dataset again = study.run(backend);
    for (const char* name : {"kept_mask", "kept_mask_query"})
      if (all && !results.has(name)) copy(again, name, policies, results, details);
    if (per_head) copy(again, "retained_importance_head", policies, results, details);
  } catch (const Error& error) {
    hooks.message(std::string("kept sets left out: the record cannot be replayed: ") +
                  error.what());
  }
}

/// Positions of at most `count` steps, ascending: the worst of every policy and budget come first,
/// by stream error, or by retained importance (mean over layers) where that was not measured.
std::vector<int64_t> worst_steps(const Dataset& results, int64_t count) {
  const auto& positions = results.values<int64_t>("step");
  const size_t steps = positions.size();
  std::vector<size_t> best_rank(steps, steps);
  std::vector<size_t> order(steps);
  for (int64_t p = 0; p < results.size("policy"); ++p) {
    for (int64_t b = 0; b < results.size("budget"); ++b) {
      const std::vector<double> losses = step_losses(results, p, b);
      const auto loss = [&](size_t t) {
        return std::isnan(losses[t]) ? -std::numeric_limits<double>::infinity() : losses[t];
      };
      std::iota(order.begin(), order.end(), size_t{0});
      std::ranges::stable_sort(order, [&](size_t x, size_t y) { return loss(x) > loss(y); });
      for (size_t rank = 0; rank < steps; ++rank)
        best_rank[order[rank]] = std::min(best_rank[order[rank]], rank);
    }
  }
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, [&](size_t x, size_t y) { return best_rank[x] < best_rank[y]; });
  order.resize(std::min<int64_t>(steps, std::max<int64_t>(count, 1)));
  std::ranges::sort(order);
  std::vector<int64_t> chosen;
  for (const size_t t : order) chosen.push_back(positions[t]);
  return chosen;
}

/// The prompt entries of most importance at each of these steps, whatever a policy kept: the
/// variables `entry` (layer, step, rank; -1: none) and `share` (layer, head, step, rank): share of
/// the layer's importance over all prompt entries and query heads. Entries are chosen per layer,
/// pooled over its heads, most first.
Dataset looked_for(const Dataset& results, const TraceReader& reader,
                   const std::vector<int64_t>& steps, Backend& backend, const StudyHooks& hooks) {
  const auto& layers = results.values<int32_t>("layer");
  const int64_t heads = reader.info().num_query_heads, entries = reader.info().prompt_len;
  Dataset found;
  found.add_dimension("layer", std::ssize(layers));
  found.add(results.at("layer"));
  found.add_dimension("head", heads);
  found.add(results.at("head"));
  add_axis(found, "looked_step", steps, "position of the query");
  add_axis(found, "rank", ascending<int64_t>(std::min(kRanks, entries)), "most importance first");
  const std::vector<std::string> entry = {"layer", "looked_step", "rank"};
  const std::vector<std::string> share = {"layer", "head", "looked_step", "rank"};
  add_variable(found, "entry", entry, std::vector<int64_t>(found.count(entry), -1),
               "position of the prompt entry; -1: none");
  add_variable(found, "share", share, std::vector<double>(found.count(share), 0.0),
               "share of the layer's importance");
  for (size_t l = 0; l < layers.size(); ++l) {
    hooks.progress(static_cast<double>(l) / static_cast<double>(layers.size()),
                   fmt::format("what steps looked for, layer {}", layers[l]));
    const LayerTrace trace = reader.read_layer(layers[l]);
    LayerWork work(trace, backend);
    LayerShares shares(found, static_cast<int64_t>(l), heads, entries);
    const Table<float>& norms = work.projected_norms(options_of(results).importance);
    const AttentionPass pass{.positions = steps, .look_ahead = true, .rows_outer = true};
    for_each_attention_block(work, pass, [&](const AttentionBlock& block, int64_t first_row) {
      shares.add(block, norms, first_row);
    });
  }
  hooks.progress(1, "");
  return found;
}

}  // namespace

Dataset details_of(const Dataset& results, const TraceReader& reader, Backend& backend,
                   const StudyHooks& hooks) {
  const int64_t per_step = results.size("layer") * reader.info().num_query_heads * kRanks;
  Dataset details = looked_for(results, reader, worst_steps(results, kMostShares / per_step),
                               backend, hooks);
  if (reader.has_token_text()) {
    std::vector<std::string> words = reader.token_text();
    add_axis(details, "token", ascending<int64_t>(std::ssize(words)), "position");
    add_variable(details, "token_text", {"token"}, std::move(words), "text of each token");
  }
  add_kept_sets(details, results, reader, backend, hooks);
  return details;
}

}  // namespace kvsim
