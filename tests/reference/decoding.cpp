#include "tests/reference/decoding.hpp"

#include <algorithm>
#include <cmath>
#include <complex>
#include <numeric>

#include "sim/core/numbers.hpp"
#include "tests/reference/reference.hpp"
#include "tests/support/random_trace.hpp"

namespace kvsim::reference {

Decoding::Decoding(const LayerTrace& layer, const Rule& rule,
                   const std::vector<std::vector<int64_t>>& kept, bool per_query_head)
    : layer_(layer), info_(*layer.info), rule_(rule),
      heads_(per_query_head ? 1 : info_.group_size()), remembered_(kept.size()),
      rows_(kept.size()) {
  for (const auto& entries : kept) {
    budget_.push_back(std::max(rule.places, static_cast<int64_t>(entries.size())));
    present.emplace_back(static_cast<size_t>(info_.total_len), false);
    for (const int64_t i : entries) present.back()[static_cast<size_t>(i)] = true;
  }
  for (int64_t j = rule.first_row; j < info_.prompt_len; ++j) see(j, false);
  std::vector<size_t> all(static_cast<size_t>(info_.prompt_len));
  std::iota(all.begin(), all.end(), size_t{0});
  for (size_t o = 0; rule.decay >= 0 && o < kept.size(); ++o)
    if (std::ssize(kept[o]) < info_.prompt_len) scores(o, all);  // the compression at n
}

void Decoding::step(int64_t row) {
  const int64_t t = info_.query_position[static_cast<size_t>(row)];
  for (auto& owner : present) owner[static_cast<size_t>(t)] = true;
  kept_attention.clear();
  change.clear();
  for (int head = 0; head < info_.num_query_heads; ++head) {
    const auto scores = logits(layer_, head, row);
    const auto full = attention(layer_, head, scores);
    const auto& own = present[static_cast<size_t>(head / heads_)];
    const auto some = attention(layer_, head, scores, own);
    double kept = 0;
    for (size_t i = 0; i < static_cast<size_t>(t); ++i) kept += own[i] ? full.weight[i] : 0;
    kept_attention.push_back(kept);
    auto delta = output(layer_, head, some.weight);
    const auto z = output(layer_, head, full.weight);
    for (size_t c = 0; c < delta.size(); ++c) delta[c] -= z[c];
    change.push_back(delta);
  }
  see(row, true);
  std::vector<std::vector<size_t>> leaving(present.size());
  for (size_t o = 0; o < present.size(); ++o)
    if (std::ranges::count(present[o], true) > budget_[o] + rule_.buffer) leaving[o] = lowest(o, t);
  for (size_t o = 0; o < present.size(); ++o)
    for (const size_t leaves : leaving[o]) present[o][leaves] = false;
}

/// The mean over owners where they have one set.
std::vector<double> Decoding::joint_scores(size_t owner, const std::vector<size_t>& slots) {
  if (!rule_.united) return scores(owner, slots);
  std::vector<double> mean(slots.size(), 0.0);
  for (size_t o = 0; o < present.size(); ++o) {
    const std::vector<double> own = scores(o, slots);
    for (size_t x = 0; x < mean.size(); ++x)
      mean[x] += own[x] / static_cast<double>(present.size());
  }
  return mean;
}

/// Of blocks that are complete and that nothing protects, those of lowest mean score.
std::vector<size_t> Decoding::lowest_blocks(const std::vector<size_t>& all,
                                            const std::vector<size_t>& open,
                                            const std::vector<double>& score, int64_t least) const {
  const auto size = static_cast<size_t>(rule_.block);
  std::vector<std::pair<double, size_t>> blocks;
  for (size_t k = 0; (k + 1) * size <= all.back() + 1; ++k) {
    double sum = 0, count = 0;
    bool free = true;
    for (size_t x = 0; x < all.size(); ++x) {
      if (all[x] / size != k) continue;
      free = free && std::ranges::find(open, x) != open.end();
      sum += score[x];
      ++count;
    }
    if (free && count > 0) blocks.emplace_back(sum / count, k);
  }
  std::ranges::sort(blocks);
  std::vector<size_t> leaving;
  for (const auto& [of_block, k] : blocks) {
    if (std::ssize(leaving) >= least) break;
    for (const size_t i : all)
      if (i / size == k) leaving.push_back(i);
  }
  return leaving;
}

/// One more row, grouped; over what is present, or over the whole prompt.
void Decoding::see(int64_t row, bool of_present) {
  std::vector<std::vector<double>> grouped(
      present.size(), std::vector<double>(static_cast<size_t>(info_.total_len), 0.0));
  for (int head = 0; head < info_.num_query_heads; ++head) {
    const auto own = static_cast<size_t>(head / heads_);
    const auto weight = attention(layer_, head, logits(layer_, head, row),
                                  of_present ? present[own] : std::vector<bool>())
                            .weight;
    for (size_t o = 0; o < grouped.size(); ++o) {
      if (!rule_.mean_of_layer && o != own) continue;
      for (size_t i = 0; i < weight.size(); ++i) {
        double& into = grouped[o][i];
        if (rule_.fold == Rule::Fold::max)
          into = std::max(into, weight[i]);
        else if (rule_.fold == Rule::Fold::sum)
          into += weight[i];
        else
          into += weight[i] / (rule_.mean_of_layer ? info_.num_query_heads : heads_);
      }
    }
  }
  seen_.push_back(info_.query_position[static_cast<size_t>(row)]);
  for (size_t o = 0; o < grouped.size(); ++o) rows_[o].push_back(grouped[o]);
}

double Decoding::weight(size_t owner, size_t entry) const {
  return l2(value(layer_, static_cast<int>(owner) * heads_, static_cast<int64_t>(entry)));
}

double Decoding::score(size_t owner, size_t entry) const {
  double s = statistic(owner, entry);
  if (rule_.value_weight) s *= weight(owner, entry);
  double sum = 0;
  for (size_t o = 0; rule_.over_heads && o < present.size(); ++o) sum += weight(o, entry);
  return sum > 0 ? s / sum : s;
}

double Decoding::statistic(size_t owner, size_t entry) const {
  if (rule_.statistic == Statistic::position) return static_cast<double>(entry);
  if (rule_.statistic == Statistic::random)
    return uniform(0, static_cast<uint64_t>(layer_.layer), owner, entry);
  const auto observing = static_cast<size_t>(info_.prompt_len - rule_.first_row);
  double sum = 0, visible = 0;
  for (size_t r = 0; r < seen_.size(); ++r) {
    const size_t age = seen_.size() - 1 - r;
    if (rule_.statistic == Statistic::mean && age >= observing) continue;
    if (rule_.statistic == Statistic::last && age > 0) continue;
    sum += rows_[owner][r][entry];
    visible += seen_[r] >= static_cast<int64_t>(entry) ? 1 : 0;
  }
  if (rule_.statistic == Statistic::mean) return sum / static_cast<double>(observing);
  return rule_.statistic == Statistic::mean_visible ? sum / visible : sum;
}

std::vector<double> key_redundancy(const std::vector<std::vector<double>>& keys, double threshold,
                                   bool first_stays) {
  const size_t n = keys.size();
  std::vector<double> mean(n, 0.0);
  for (size_t row = 0; row < n; ++row) {
    std::vector<double> cosine(n, 0.0);
    size_t newest = 0;
    for (size_t i = 0; i < n; ++i) {
      double dot = 0;
      for (size_t c = 0; c < keys[i].size(); ++c) dot += keys[row][c] * keys[i][c];
      if (i != row) cosine[i] = dot / ((l2(keys[row]) + 1e-8) * (l2(keys[i]) + 1e-8));
      if (cosine[i] > threshold) newest = i;
    }
    if (!first_stays || cosine[newest] > threshold) cosine[newest] = 0;
    for (size_t i = 0; i < n; ++i) mean[i] += cosine[i] / static_cast<double>(n);
  }
  double sum = 0;
  for (double& x : mean) sum += x = std::exp(x);
  for (double& x : mean) x /= sum;
  return mean;
}

/// Of the slots present: pooled over neighbours, those of the window left out, and less what other
/// slots say, too.
std::vector<double> Decoding::scores(size_t owner, const std::vector<size_t>& slots) {
  if (rule_.statistic == Statistic::trigonometric) return by_centre(owner, slots);
  const auto scored = std::max<int64_t>(0, static_cast<int64_t>(slots.size()) - rule_.window);
  std::vector<double> pooled(slots.size(), 0.0);
  for (int64_t x = 0; x < scored; ++x) {
    double most = score(owner, slots[static_cast<size_t>(x)]);
    for (int64_t y = x - rule_.pooled / 2; y <= x + rule_.pooled / 2; ++y)
      if (y >= 0 && y < scored) most = std::max(most, score(owner, slots[static_cast<size_t>(y)]));
    pooled[static_cast<size_t>(x)] = most;
  }
  if (rule_.decay >= 0) {
    const double most = *std::max_element(pooled.begin(), pooled.begin() + scored);
    for (int64_t x = 0; x < scored; ++x) {
      double& now = pooled[static_cast<size_t>(x)];
      now /= most;
      double& before = remembered_[owner][slots[static_cast<size_t>(x)]];  // 0 at first
      before = now = std::max(now, rule_.decay * before);
    }
  }
  if (rule_.mix < 0) return pooled;
  std::vector<std::vector<double>> keys;
  for (const size_t i : slots)
    keys.push_back(key_of(layer_, static_cast<int>(owner) * heads_, static_cast<int64_t>(i)));
  std::vector<double> said = key_redundancy(keys, 0.5, rule_.decay >= 0);
  if (rule_.decay >= 0) {
    const double most = *std::max_element(said.begin(), said.begin() + scored);
    for (double& one : said) one /= most;
  }
  for (size_t x = 0; x < pooled.size(); ++x)
    pooled[x] = rule_.mix * pooled[x] - (1 - rule_.mix) * said[x];
  return pooled;
}

/// TriAttention: for each head that reads the owner, logits of the mean query so far, and what the
/// pairs' lengths exceed the mean's by; over open slots less their mean, over their deviation. The
/// largest of the heads.
std::vector<double> Decoding::by_centre(size_t owner, const std::vector<size_t>& slots) const {
  const Rotation& rope = info_.rotation(layer_.layer);
  const size_t half = rope.inv_freq.size();
  using Complex = std::complex<double>;
  const auto pairs = [&](const std::vector<double>& row, int64_t position) {
    std::vector<Complex> z;
    for (size_t f = 0; f < half; ++f)
      z.push_back(Complex(row[rope.first_of(f)], row[rope.second_of(f)]) *
                  std::polar(1.0, -static_cast<double>(position) * rope.inv_freq[f]));
    std::vector<bool> turns(row.size(), false);
    for (size_t f = 0; f < half; ++f) turns[rope.first_of(f)] = turns[rope.second_of(f)] = true;
    for (size_t c = 0; c < row.size(); ++c)
      if (!turns[c]) z.emplace_back(row[c]);
    return z;
  };
  const auto safe = [&](size_t i) {
    return rule_.keeps_prompt && static_cast<int64_t>(i) < info_.prompt_len;
  };
  std::vector<double> best(slots.size(), -INFINITY);
  for (int x = 0; x < heads_; ++x) {
    const int head = static_cast<int>(owner) * heads_ + x;
    std::vector<Complex> mean(static_cast<size_t>(info_.head_dim) - half);
    std::vector<double> length(half, 0.0);
    for (const int64_t j : seen_) {
      std::vector<double> query;
      for (int64_t c = 0; c < info_.head_dim; ++c)
        query.push_back(static_cast<double>(test::element(layer_.q, head, j, c)));
      const auto z = pairs(query, j);
      for (size_t f = 0; f < z.size(); ++f) mean[f] += z[f] / static_cast<double>(seen_.size());
      for (size_t f = 0; f < half; ++f) {
        length[f] += std::abs(z[f]) / static_cast<double>(seen_.size());
      }
    }
    std::vector<double> score(slots.size(), 0.0);
    double sum = 0, squares = 0, open = 0, steps = 0;
    for (int64_t ahead = 1; ahead <= rule_.reach; ahead *= 2) ++steps;
    for (size_t s = 0; s < slots.size(); ++s) {
      if (safe(slots[s])) continue;
      const auto position = static_cast<int64_t>(slots[s]);
      const auto key = pairs(key_of(layer_, static_cast<int>(owner) * heads_, position), position);
      for (size_t f = 0; f < half; ++f) {
        for (int64_t ahead = 1; ahead <= rule_.reach; ahead *= 2)
          score[s] += (mean[f] * std::conj(key[f]) *
                       std::polar(1.0, static_cast<double>(seen_.back() + 1 + ahead - position) *
                                           rope.inv_freq[f]))
                          .real() /
                      steps;
        score[s] += (length[f] - std::abs(mean[f])) * std::abs(key[f]);
      }
      for (size_t c = half; c < key.size(); ++c) score[s] += mean[c].real() * key[c].real();
      sum += score[s];
      ++open;
    }
    for (size_t s = 0; s < slots.size(); ++s)
      if (!safe(slots[s])) squares += (score[s] - sum / open) * (score[s] - sum / open) / open;
    for (size_t s = 0; s < slots.size(); ++s)
      best[s] = std::max(best[s], (score[s] - sum / open) / std::max(std::sqrt(squares), 1e-6));
  }
  return best;
}

/// Of those that are not safe, the lowest, the older of equals; if all are, the oldest that is no
/// sink, nor of a prompt that stays.
std::vector<size_t> Decoding::lowest(size_t owner, int64_t newest) {
  std::vector<size_t> all, open;
  for (size_t i = 0; i <= static_cast<size_t>(newest); ++i)
    if (present[owner][i]) all.push_back(i);
  const auto share = [&](double of) {
    return static_cast<int64_t>(std::floor(of * static_cast<double>(budget_[owner])));
  };
  const auto safe = static_cast<size_t>(
      std::max({rule_.newest, rule_.window, share(rule_.newest_share)}));
  const auto is_sink = [&](size_t i) { return static_cast<int64_t>(i) < rule_.sinks; };
  const auto is_safe = [&](size_t i) {
    return is_sink(i) || (rule_.keeps_prompt && static_cast<int64_t>(i) < info_.prompt_len);
  };
  for (size_t x = 0; x + safe < all.size(); ++x)
    if (!is_safe(all[x])) open.push_back(x);
  if (open.empty()) return {*std::ranges::find_if_not(all, is_safe)};
  const std::vector<double> score_of = joint_scores(owner, all);
  const int64_t batch = std::max(rule_.buffer + 1, share(rule_.batch_share));
  if (rule_.block > 1)
    if (auto blocks = lowest_blocks(all, open, score_of, batch); !blocks.empty()) return blocks;
  std::ranges::stable_sort(open, {}, [&](size_t x) { return score_of[x]; });
  open.resize(std::min(open.size(), static_cast<size_t>(batch)));
  for (size_t& x : open) x = all[x];
  return open;
}

}  // namespace kvsim::reference
