#pragma once
#include "sim/core/layer_trace.hpp"
#include "sim/policy/prepared_record.hpp"
#include "sim/stages/indicator/indicator.hpp"

namespace kvsim {

/// Sorts distinct entries below n; long lists by a mark for each of the n.
inline void sort_entries(int64_t n, std::vector<uint32_t>& entries) {
  if (std::ssize(entries) < n / 32) {
    std::ranges::sort(entries);
    return;
  }
  std::vector<uint8_t> in(n, 0);
  for (const uint32_t i : entries) in[i] = 1;
  size_t at = 0;
  for (uint32_t i = 0; i < in.size() && at < entries.size(); ++i) {
    entries[at] = i;  // overwritten unless i is in
    at += in[i];
  }
}

/// Entries kept for sure, before budgets are allocated: protected ones in the order of their
/// grant, then those that stage 1 forces.
struct Guaranteed {
  std::vector<uint32_t> entries;
  int64_t guarded = 0;  ///< how many of them are protected
};

class Selection {
 public:
  /// Of one layer at one budget, the same for all owners. `ranking`: by the final score;
  /// `unconstrained`: what the record keeps without a constraint that compares with it, or null.
  Selection(const PreparedRecord& record, const PreparedBudget& budget, const ScoredLayer& scored,
            const Ranking& ranking, const KeptSets* unconstrained)
      : record_(record), budget_(budget), scored_(scored), ranking_(ranking),
        unconstrained_(unconstrained) {}
  Guaranteed guaranteed(int64_t owner) const {
    Guaranteed sure;
    if (record_.rescored) {
      const std::vector<int64_t> parts = shares(owner, budget_.entries);
      for (size_t k = 0; k < parts.size(); ++k)
        for (uint32_t i : protection(owner, k, parts[k])) sure.entries.push_back(i);
    } else {
      sure.entries = protection(owner, 0, budget_.entries);
    }
    sure.guarded = std::ssize(sure.entries);
    if (record_.rescored) return sure;
    const auto first = forced(owner, whole(), budget_.entries, true, sure.entries);
    sure.entries.insert(sure.entries.end(), first.begin(), first.end());
    return sure;
  }
  /// Kept entries, guarded ones and ties of one owner with b entries; written to `kept`.
  void select(int64_t owner, int64_t b, KeptSets& kept) const {
    const std::vector<int64_t> parts = shares(owner, b);
    std::vector<uint32_t> guarded, first;
    if (!record_.rescored) {
      guarded = protection(owner, 0, budget_.entries);
      first = forced(owner, whole(), budget_.entries, true, guarded);
      const auto later = forced(owner, whole(), b, false, guarded);
      first.insert(first.end(), later.begin(), later.end());
    }
    kept.tied[owner] = 0;
    for (size_t k = 0; k < parts.size(); ++k) {
      Part part{.range = record_.ranges[k], .share = parts[k], .guarded = {}, .forced = {}};
      if (record_.rescored) {
        part.guarded = protection(owner, k, part.share);
        part.forced = forced(owner, part.range, part.share, false, part.guarded);
      } else {
        const auto inside = [&](uint32_t i) { return part.range.contains(i); };
        std::ranges::copy_if(guarded, std::back_inserter(part.guarded), inside);
        std::ranges::copy_if(first, std::back_inserter(part.forced), inside);
      }
      const auto& allocate = record_.stage<Allocate>();
      if (allocate.lets_protected_compete(record_.settings)) order_by_position(part);
      take(owner, part, kept);
    }
    sort_entries(scored_.entries(), kept.owners[owner]);
    auto& sure = kept.guarded[owner];
    std::ranges::sort(sure);
    if (scored_.deviation.empty()) return;
    std::vector<uint32_t> placed;
    for (size_t k = 0; k < (record_.rescored ? parts.size() : 1); ++k)
      for (const uint32_t i :
           protection(owner, k, record_.rescored ? parts[k] : budget_.entries, false))
        placed.push_back(i);
    std::ranges::sort(placed);
    const auto others = std::ranges::stable_partition(
        sure, [&](uint32_t i) { return std::ranges::binary_search(placed, i); });
    kept.spread[owner].assign(others.begin(), others.end());
    sure.erase(others.begin(), others.end());
  }

 private:
  /// A range with its share of the budget and what goes first in it.
  struct Part {
    Range range;
    int64_t share = 0;
    std::vector<uint32_t> guarded;  // in the order of their grant
    std::vector<uint32_t> forced;   // best first
  };
  /// Protected entries of part k, fractions multiplying `budget`. A record that is not scored anew
  /// in its segments is protected as if it had none.
  std::vector<uint32_t> protection(int64_t owner, size_t k, int64_t budget,
                                   bool by_deviation = true) const {
    const size_t last = record_.rescored ? scored_.segments.size() - 1 : 0;
    ProtectRequest request;
    request.settings = &record_.settings;
    request.whitelist = &record_.whitelist;
    request.layer = scored_.layer;
    request.range = record_.rescored ? scored_.segments[k].range : whole();
    request.first = k == 0;
    request.last = k == last;
    request.window = scored_.segments[record_.rescored ? k : last].window;
    request.budget = budget;
    if (by_deviation && !scored_.deviation.empty())
      request.deviation = scored_.deviation.row(owner);
    request.candidate = scored_.candidate;
    return protected_entries(request);
  }
  std::vector<uint32_t> forced(int64_t owner, Range range, int64_t budget, bool before,
                               const std::vector<uint32_t>& guarded) const {
    std::vector<uint8_t> is_protected(scored_.entries(), 0);
    for (uint32_t i : guarded) is_protected[i] = 1;
    Stage1Request request;
    request.settings = &record_.settings;
    request.scored = &scored_;
    request.owner = owner;
    request.range = range;
    request.budget = budget;
    request.protected_count = std::ssize(guarded);
    request.is_protected = &is_protected;
    request.mass_cap = budget_.mass_cap;
    request.kvpress_kept = budget_.kvpress_kept;
    request.budget_is_count = budget_.is_count;
    if (!scored_.unweighted.empty())
      request.by_unweighted =
          &scored_.ranking_unweighted.at(ties_by_raw(record_.settings)).order[owner];
    const auto& stage = record_.stage<Stage1>();
    return before ? stage.before_allocate(request) : stage.after_allocate(request);
  }
  std::vector<int64_t> shares(int64_t owner, int64_t b) const {
    ShareRequest request;
    request.budget = b;
    for (const Range& range : record_.ranges) request.sizes.push_back(range.size());
    request.position = record_.stage<Indicator>().as<ScoresByPosition>() != nullptr;
    if (request.position)
      request.sinks = std::min({record_.settings.count(keys::sinks), request.sizes[0], b});
    if (unconstrained_)
      for (const Range& range : record_.ranges) {
        const auto& all = unconstrained_->owners[owner];
        request.unconstrained.push_back(
            std::ranges::count_if(all, [&](uint32_t i) { return range.contains(i); }));
      }
    return record_.stage<Constrain>().shares(record_.settings, request);
  }
  /// Newest first, as they won their places; only whitelisted entries, which every head keeps,
  /// first.
  void order_by_position(Part& part) const {
    const auto listed = [&](uint32_t i) {
      return std::ranges::any_of(record_.whitelist, [i](const Range& r) { return r.contains(i); });
    };
    std::ranges::sort(part.guarded, [&](uint32_t a, uint32_t b) {
      return listed(a) != listed(b) ? listed(a) : a > b;
    });
    std::ranges::sort(part.forced, std::greater<>());
  }
  /// The entries of a part in the order protected, forced, score, as many as its share has room
  /// for, by whole blocks: the first of a block stands for it.
  void take(int64_t owner, const Part& part, KeptSets& kept) const {
    auto& entries = kept.owners[owner];
    std::vector<uint8_t> sure(scored_.entries(), 0);
    std::vector<uint8_t> in(scored_.entries(), 0);
    int64_t left = part.share;
    const auto enters = [&](uint32_t i) {
      if (in[i]) return true;
      const Range block = block_of(record_.settings, i, scored_.entries());
      if (left < block.size()) {
        left = 0;  // smaller blocks that follow do not overtake it: budgets nest
        return false;
      }
      left -= block.size();
      for (int64_t k = block.begin; k < block.end; ++k) {
        entries.push_back(static_cast<uint32_t>(k));
        in[k] = 1;
      }
      return true;
    };
    for (uint32_t i : part.guarded) {
      sure[i] = 1;
      if (enters(i)) kept.guarded[owner].push_back(i);
    }
    for (uint32_t i : part.forced) {
      sure[i] = 1;
      enters(i);
    }
    for (const uint32_t i : entries) sure[i] = 1;  // what came with its block
    const auto score = ranking_.score->row(owner);
    double threshold = 0;
    int64_t tied = 0;
    bool by_score = false;
    for (uint32_t i : ranking_.order[owner]) {
      if (sure[i] || !part.range.contains(i)) continue;
      if (enters(i)) {
        tied = by_score && score[i] == threshold ? tied + 1 : 1;
        threshold = score[i];
        by_score = true;
      } else if (by_score && score[i] == threshold) {
        ++tied;
      } else {
        break;
      }
    }
    kept.tied[owner] += tied;
  }
  Range whole() const { return {0, scored_.entries()}; }

  const PreparedRecord& record_;
  const PreparedBudget& budget_;
  const ScoredLayer& scored_;
  const Ranking& ranking_;
  const KeptSets* unconstrained_;
};

}  // namespace kvsim
