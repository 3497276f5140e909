#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <numeric>

#include "sim/policy/record.hpp"
#include "sim/replay/prefill.hpp"
#include "tests/reference/reference.hpp"
#include "tests/reference/replay.hpp"
#include "tests/support/study_case.hpp"

using namespace kvsim;
using namespace kvsim::test;

namespace {

using Sets = std::vector<std::vector<uint32_t>>;

/// The `count` entries of largest importance at one step, summed over the heads of each owner.
Sets best_sets(const LayerTrace& layer, int64_t row, size_t count, bool per_query_head) {
  const TraceInfo& info = *layer.info;
  const int heads = per_query_head ? 1 : info.group_size();
  Sets sets;
  for (int first = 0; first < info.num_query_heads; first += heads) {
    std::vector<double> gain(static_cast<size_t>(info.prompt_len), 0.0);
    for (int head = first; head < first + heads; ++head) {
      const auto importance = importance_of(layer, head, row);
      for (size_t i = 0; i < gain.size(); ++i) gain[i] += importance[i];
    }
    std::vector<uint32_t> order(gain.size());
    std::iota(order.begin(), order.end(), 0u);
    std::sort(order.begin(), order.end(),
              [&](uint32_t a, uint32_t b) { return gain[a] > gain[b]; });
    order.resize(count);
    std::sort(order.begin(), order.end());
    sets.push_back(order);
  }
  return sets;
}

std::vector<double> query_of(const LayerTrace& layer, int head, int64_t row) {
  std::vector<double> q(static_cast<size_t>(layer.q.dim(2)));
  for (size_t c = 0; c < q.size(); ++c)
    q[c] = static_cast<double>(element(layer.q, head, row, static_cast<int64_t>(c)));
  return q;
}

/// Quest: the pages of `size` keys whose bound is largest for the query at one row, as many as
/// whole ones are in `places`.
Sets best_pages(const LayerTrace& layer, int64_t row, size_t places, int64_t size,
                bool per_query_head) {
  const TraceInfo& info = *layer.info;
  const int heads = per_query_head ? 1 : info.group_size();
  const int64_t n = info.prompt_len;
  Sets sets;
  for (int first = 0; first < info.num_query_heads; first += heads) {
    std::multimap<double, int64_t, std::greater<>> pages;  // equal bounds: the newest first
    for (int64_t begin = (n - 1) / size * size; begin >= 0; begin -= size) {
      double bound = 0;
      for (int head = first; head < first + heads; ++head) {
        const auto q = query_of(layer, head, row);
        for (size_t c = 0; c < q.size(); ++c) {
          double most = -std::numeric_limits<double>::infinity();
          double low = most, high = most;
          for (int64_t i = begin; i < std::min(begin + size, n); ++i) {
            const double k = reference::key_of(layer, head, i)[c];
            low = i == begin ? k : std::min(low, k);
            high = i == begin ? k : std::max(high, k);
          }
          bound += std::max(q[c] * low, q[c] * high);
        }
      }
      pages.emplace(bound, begin);
    }
    std::vector<uint32_t> set;
    size_t left = places / static_cast<size_t>(size);
    for (auto page = pages.begin(); page != pages.end() && left > 0; ++page, --left)
      for (int64_t i = page->second; i < std::min(page->second + size, n); ++i)
        set.push_back(static_cast<uint32_t>(i));
    std::sort(set.begin(), set.end());
    sets.push_back(set);
  }
  return sets;
}

using Row = std::vector<double>;

/// The `count` entries of largest attention by estimates of each head's products with the keys; of
/// equal ones the more recent.
Sets best_estimated(
    const LayerTrace& layer, int64_t row, size_t count, bool per_query_head,
    const std::function<Row(const std::vector<Row>& queries, size_t head, int kv_head)>& products) {
  const TraceInfo& info = *layer.info;
  const int heads = per_query_head ? 1 : info.group_size();
  Sets sets;
  for (int first = 0; first < info.num_query_heads; first += heads) {
    std::vector<Row> queries;
    for (int head = first; head < first + heads; ++head)
      queries.push_back(query_of(layer, head, row));
    Row share(static_cast<size_t>(info.prompt_len), 0.0);
    for (size_t h = 0; h < queries.size(); ++h) {
      const Row product = products(queries, h, first / info.group_size());
      double sum = 0;
      for (const double x : product) sum += std::exp(layer.scale * x);
      for (size_t i = 0; i < share.size(); ++i)
        share[i] += std::exp(layer.scale * product[i]) / sum;
    }
    std::vector<uint32_t> order(share.size());
    std::iota(order.begin(), order.end(), 0u);
    std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
      return share[a] != share[b] ? share[a] > share[b] : a > b;
    });
    order.resize(count);
    std::sort(order.begin(), order.end());
    sets.push_back(order);
  }
  return sets;
}

Row prompt_key(const LayerTrace& layer, int kv_head, int64_t i) {
  return reference::key_of(layer, kv_head * layer.info->group_size(), i);
}

/// SparQ: channels in which the queries are largest.
Row by_channels(const LayerTrace& layer, size_t count, const std::vector<Row>& queries, size_t head,
                int kv_head) {
  std::vector<std::pair<double, size_t>> sizes;
  for (size_t c = 0; c < queries[0].size(); ++c) {
    double sum = 0;
    for (const Row& q : queries) sum += std::fabs(q[c]);
    sizes.emplace_back(-sum, c);
  }
  std::sort(sizes.begin(), sizes.end());
  sizes.resize(count);
  double all = 0, own = 0;
  for (const double q : queries[head]) all += std::fabs(q);
  for (const auto& [size, c] : sizes) own += std::fabs(queries[head][c]);
  Row products;
  for (int64_t i = 0; i < layer.info->prompt_len; ++i) {
    const Row k = prompt_key(layer, kv_head, i);
    double sum = 0;
    for (const auto& [size, c] : sizes) sum += queries[head][c] * k[c];
    products.push_back(sum * std::sqrt(all / own));
  }
  return products;
}

/// PQCache: keys whose parts are the nearest of some centroids.
Row by_codes(const LayerTrace& layer, size_t parts, size_t count, const Row& query, int kv_head) {
  const auto n = static_cast<size_t>(layer.info->prompt_len);
  std::vector<Row> keys;
  for (size_t i = 0; i < n; ++i)
    keys.push_back(prompt_key(layer, kv_head, static_cast<int64_t>(i)));
  Row products(n, 0.0);
  for (size_t p = 0; p < parts; ++p) {
    const size_t from = p * query.size() / parts, to = (p + 1) * query.size() / parts;
    std::vector<Row> part, centre;
    for (const Row& k : keys)
      part.emplace_back(k.begin() + static_cast<int64_t>(from),
                        k.begin() + static_cast<int64_t>(to));
    for (size_t k = 0; k < count; ++k) centre.push_back(part[(2 * k + 1) * n / (2 * count)]);
    const auto nearest = [&](const Row& x) {
      size_t best = 0;
      double least = std::numeric_limits<double>::infinity();
      for (size_t k = 0; k < count; ++k) {
        double away = 0;
        for (size_t c = 0; c < x.size(); ++c) away += (x[c] - centre[k][c]) * (x[c] - centre[k][c]);
        if (away < least) best = k;
        least = std::min(least, away);
      }
      return best;
    };
    for (int step = 0; step < 10; ++step) {
      std::vector<std::vector<Row>> members(count);
      for (const Row& x : part) members[nearest(x)].push_back(x);
      for (size_t k = 0; k < count; ++k)
        for (size_t c = 0; c < to - from && !members[k].empty(); ++c) {
          double sum = 0;
          for (const Row& x : members[k]) sum += x[c];
          centre[k][c] = sum / static_cast<double>(members[k].size());
        }
    }
    for (size_t i = 0; i < n; ++i) {
      const Row& code = centre[nearest(part[i])];
      for (size_t c = from; c < to; ++c) products[i] += query[c] * code[c - from];
    }
  }
  return products;
}

/// What every later step has under a record with so many places for each owner, against `expected`
/// sets of a row; in float64.
template <class Expected>
void check_steps(const RandomTrace& trace, const std::string& text,
                 const std::vector<int64_t>& places, const Expected& expected_sets) {
  const Record record = Record::parse(text);
  const TraceInfo& info = trace.info;
  const bool per_query_head = record.settings.text("granularity") == "query";
  const auto owners = static_cast<size_t>(per_query_head ? info.num_query_heads
                                                         : info.num_kv_heads);
  std::vector<std::shared_ptr<const KeptSets>> kept;
  for (const int64_t count : places) {
    KeptSets sets;
    sets.per_query_head = per_query_head;
    sets.chosen_per_step = true;
    sets.owners.resize(owners);
    sets.places.assign(owners, count);
    kept.push_back(std::make_shared<const KeptSets>(sets));
  }
  const auto backend = make_cpu_backend();
  LayerWork work(trace.layer, *backend);
  const Table<float>& importance = work.projected_norms(Norm::l1);
  std::vector<float> z;
  for (int head = 0; head < info.num_query_heads; ++head) {
    for (int64_t row = info.first_step(); row < static_cast<int64_t>(info.query_position.size());
         ++row) {
      const auto weight = reference::attention(trace.layer, head,
                                               reference::logits(trace.layer, head, row));
      for (const double x : reference::output(trace.layer, head, weight.weight)) {
        z.push_back(static_cast<float>(x));
      }
    }
  }
  const auto results = replay_per_step(work, record.settings, kept,
                                       {importance.data(), importance.columns(), &z, false, {}});
  const int64_t steps = info.steps();
  for (size_t b = 0; b < kept.size(); ++b) {
    for (int64_t s = 0; s < steps; ++s) {
      const int64_t row = info.first_step() + s;
      const Sets sets = expected_sets(row, static_cast<size_t>(places[b]), per_query_head);
      const auto expected = reference::replay_step(trace.layer, sets, per_query_head, row);
      double attention = 0;
      double prompt = 0;
      for (int head = 0; head < info.num_query_heads; ++head) {
        attention += results[b].kept.attention(head, s);
        const auto full = reference::attention(trace.layer, head,
                                               reference::logits(trace.layer, head, row));
        prompt += std::accumulate(full.weight.begin(), full.weight.begin() + info.prompt_len, 0.0);
        std::vector<double> delta;
        for (int64_t c = 0; c < work.value_dim(); ++c) {
          delta.push_back(
              results[b].delta[static_cast<size_t>((head * steps + s) * work.value_dim() + c)]);
        }
        const double change = reference::l2(reference::project(trace.layer, head, delta));
        const double whole = reference::l2(reference::project(
            trace.layer, head, reference::output(trace.layer, head, full.weight)));
        CHECK(change / whole ==
              Approx(expected.output_error_head[static_cast<size_t>(head)]).margin(2e-5));
      }
      CHECK(attention / prompt == Approx(expected.retained_attention).margin(2e-5));
      if (s + 1 == steps) CHECK(results[b].last.owners == sets);
    }
  }
}

}  // namespace

TEST_CASE("per-step choice keeps each step's most important entries", "[replay]") {
  RandomTraceShape shape;
  shape.sink = GENERATE(false, true);
  const auto trace = random_trace(shape);
  const std::string owner = GENERATE("", ",granularity=query");
  check_steps(*trace, "oracle-step" + owner, {3, 10},
              [&](int64_t row, size_t places, bool per_query_head) {
    return best_sets(trace->layer, row, places, per_query_head);
  });
}

TEST_CASE("pages are read by the most that a step's query can look at their keys", "[replay]") {
  RandomTraceShape shape;
  shape.sink = GENERATE(false, true);
  const auto trace = random_trace(shape);
  const std::string owner = GENERATE("", ",granularity=kv");
  const int64_t page = GENERATE(1, 3, 4);
  // The prompt does not divide by the size of a page; some places do not, either.
  check_steps(*trace, "quest,block=" + std::to_string(page) + owner, {2, 7, 12},
              [&](int64_t row, size_t places, bool per_query_head) {
    return best_pages(trace->layer, row, places, page, per_query_head);
  });
}

TEST_CASE("entries are read by a step's largest channels, or by coded keys", "[replay]") {
  RandomTraceShape shape;
  shape.sink = GENERATE(false, true);
  const auto trace = random_trace(shape);
  const std::string owner = GENERATE(",granularity=query", ",granularity=kv");
  for (const size_t channels : {2, 5, 16}) {
    CAPTURE(channels, owner);
    check_steps(*trace, "sparq,recent=0,read_channels=" + std::to_string(channels) + owner, {2, 12},
                [&](int64_t row, size_t places, bool per_query_head) {
      return best_estimated(trace->layer, row, places, per_query_head,
                            [&](const std::vector<Row>& queries, size_t head, int kv_head) {
        return by_channels(trace->layer, channels, queries, head, kv_head);
      });
    });
  }
  for (const size_t parts : {1, 3}) {
    CAPTURE(parts, owner);
    check_steps(*trace, "pqcache,sinks=0,code_bits=3,code_parts=" + std::to_string(parts) + owner,
                {2, 12},
                [&](int64_t row, size_t places, bool per_query_head) {
      return best_estimated(trace->layer, row, places, per_query_head,
                            [&](const std::vector<Row>& queries, size_t head, int kv_head) {
        return by_codes(trace->layer, parts, 8, queries[head], kv_head);
      });
    });
  }
}
