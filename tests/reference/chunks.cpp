#include <algorithm>

#include "tests/reference/policy_reference.hpp"
#include "tests/support/random_trace.hpp"

namespace kvsim::reference {
namespace {

/// [a][entries][c] of [a][N][c]: of KV head a the entries `cache[a]`.
Tensor picked(const Tensor& tensor, const std::vector<std::vector<int64_t>>& cache) {
  Tensor out(ElementType::float32, {tensor.dim(0), std::ssize(cache[0]), tensor.dim(2)});
  for (int64_t a = 0; a < out.dim(0); ++a)
    for (int64_t i = 0; i < out.dim(1); ++i)
      for (int64_t x = 0; x < out.dim(2); ++x)
        test::set_element(
            out, a, i, x,
            test::element(tensor, a, cache[static_cast<size_t>(a)][static_cast<size_t>(i)], x));
  return out;
}

/// Of a chunk that is compressed by itself.
int64_t places_of_chunk(const PolicyCase& c, int64_t length) {
  if (c.is_count()) return std::max<int64_t>(1, c.entries() * length / c.n());
  if (c.settings.is("rounding", "exact"))
    return std::max<int64_t>(1, (c.ratio() * Rational(length)).floor());
  const double removed = (Rational(1) - c.ratio()).value();
  return std::max<int64_t>(1, static_cast<int64_t>(static_cast<double>(length) * (1 - removed)));
}

std::vector<Head> in_chunks(const PolicyCase& c, const LayerTrace& layer, double& closest) {
  const int64_t size = c.settings.count("chunk");
  const bool alone = c.settings.is("chunk_scope", "chunk");
  const bool from_budget = !alone && c.settings.is("rounding", "kvpress");
  std::vector<Head> heads(static_cast<size_t>(c.owners()));
  std::vector<std::vector<int64_t>> cache(heads.size());
  for (int64_t t = 0; t < c.n();) {
    const int64_t end = std::min(t + (t == 0 && from_budget ? c.entries() : size), c.n());
    const int64_t places = alone ? places_of_chunk(c, end - t) : c.entries();
    for (auto& entries : cache) {
      if (alone) entries.clear();
      for (int64_t i = t; i < end; ++i) entries.push_back(i);
    }
    t = end;
    LayerTrace now = layer;
    TraceInfo info = *c.info;
    now.info = &info;
    now.k = picked(layer.k, cache);
    now.v = picked(layer.v, cache);
    now.residual_norm.clear();
    info.prompt_len = info.total_len = std::ssize(cache[0]);
    info.query_position.clear();
    std::vector<std::vector<int64_t>> rows(static_cast<size_t>(info.num_query_heads));
    for (size_t i = 0; i < cache[0].size(); ++i) {  // queries that all heads still have
      const int64_t p = cache[0][i];
      if (std::ranges::any_of(cache, [&](const auto& one) { return one[i] != p; })) continue;
      info.query_position.push_back(static_cast<int64_t>(i));
      for (auto& head : rows) head.push_back(p);
    }
    now.q = picked(layer.q, rows);
    PolicyCase part = c;
    part.settings.set("schedule", "prefill");
    part.info = &info;
    part.layers = {&now};
    part.budget = std::to_string(places);
    const PolicyResult kept = run_policy(part);
    closest = std::min(closest, kept.closest);
    for (size_t o = 0; o < heads.size(); ++o) {
      Head head = kept.layers[0][o];
      for (auto* const list : {&head.kept, &head.guarded})
        for (int64_t& i : *list) i = cache[o][static_cast<size_t>(i)];
      if (!alone) heads[o] = {};
      heads[o].tied += head.tied;
      heads[o].kept.insert(heads[o].kept.end(), head.kept.begin(), head.kept.end());
      heads[o].guarded.insert(heads[o].guarded.end(), head.guarded.begin(), head.guarded.end());
    }
    for (size_t o = 0; o < heads.size(); ++o) cache[o] = heads[o].kept;
  }
  return heads;
}

}  // namespace

PolicyResult run_in_chunks(const PolicyCase& c) {
  PolicyResult result;
  for (const LayerTrace* layer : c.layers) {
    std::vector<Head>& heads = result.layers.emplace_back(static_cast<size_t>(c.owners()));
    if (!c.skips(layer->layer)) {
      heads = in_chunks(c, *layer, result.closest);
      continue;
    }
    for (Head& head : heads)
      for (int64_t i = 0; i < c.n(); ++i) head.kept.push_back(i);
  }
  return result;
}

}  // namespace kvsim::reference
