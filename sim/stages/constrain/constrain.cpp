#include "sim/stages/allocate/allocate.hpp"
#include "sim/stages/stages.hpp"

namespace kvsim::keys {

const Declare fair_scores("fair_scores", "local | default", "local",
                          "scores are computed anew inside each segment, or not");

}  // namespace kvsim::keys

namespace kvsim::stages::constrain::constrain {

const Declare constrain("constrain", "kind", "none", "division of the budget over spans");
const Declare fair_spans("fair_spans", "text spans", "all",
                         "spans that cut the prompt into segments, joined by +",
                         checked_by(span_list_fault), tested("head+tail middle+tail"));
const Declare fair_rounding("fair_rounding", "floor | remainder", "floor",
                            "how shares become whole numbers");
const Declare debias_lambda("debias_lambda", "number [0, 1]", "0.5",
                            "0: shares of the unconstrained record, 1: fair shares",
                            tested("0 0.3 1"));

enum class FairRounding { floor, remainder };  // words of fair_rounding

/// Segments start where the named spans start; the first starts at 0, the last ends at n.
std::vector<Range> cut(const Settings& settings, const std::vector<Span>& spans, int64_t entries) {
  std::vector<int64_t> starts;
  if (settings.is(fair_spans, "all")) {
    int64_t end = 0;  // of the outermost span before; those inside it cut nothing
    for (const Span& span : spans) {
      if (span.begin < end) continue;
      starts.push_back(span.begin);
      end = span.end;
    }
  } else {
    for (const Range& range : resolve_spans(settings.list(fair_spans), spans, entries))
      starts.push_back(range.begin);
  }
  std::sort(starts.begin(), starts.end());
  starts.erase(std::unique(starts.begin(), starts.end()), starts.end());
  if (starts.size() < 2)
    bad_data({"too few spans to divide a budget over", "constrain=" + settings.text("constrain"),
              std::to_string(starts.size()), "at least 2"});
  std::vector<Range> segments;
  for (size_t k = 0; k < starts.size(); ++k)
    segments.push_back({k == 0 ? 0 : starts[k], k + 1 < starts.size() ? starts[k + 1] : entries});
  return segments;
}

/// Shares above their segment's size pass the excess to the segment before (else the next).
void pass_excess(const std::vector<int64_t>& sizes, std::vector<int64_t>& shares) {
  for (size_t k = shares.size(); k-- > 1;) {
    const int64_t excess = std::max<int64_t>(0, shares[k] - sizes[k]);
    shares[k] -= excess;
    shares[k - 1] += excess;
  }
  for (size_t k = 0; k + 1 < shares.size(); ++k) {
    const int64_t excess = std::max<int64_t>(0, shares[k] - sizes[k]);
    shares[k] -= excess;
    shares[k + 1] += excess;
  }
}

/// Appendix F.3: sinks first, then by size without them, round half up, the last takes the rest.
std::vector<int64_t> shares_by_position(const ShareRequest& request) {
  std::vector<int64_t> sizes = request.sizes;
  sizes[0] -= request.sinks;
  const int64_t total = std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
  int64_t left = request.budget - request.sinks;
  std::vector<int64_t> shares(sizes.size(), 0);
  for (size_t k = 0; k + 1 < sizes.size(); ++k) {
    const int64_t whole = request.budget - request.sinks;
    const int64_t rounded = total > 0 ? (2 * whole * sizes[k] + total) / (2 * total) : 0;
    shares[k] = std::min(rounded, left);
    left -= shares[k];
  }
  shares.back() = left;
  pass_excess(sizes, shares);
  shares[0] += request.sinks;
  return shares;
}

std::vector<int64_t> fair_shares(const Settings& settings, const ShareRequest& request) {
  if (request.position) return shares_by_position(request);
  if (settings.word<FairRounding>(fair_rounding) == FairRounding::remainder)
    return apportion_exact(request.budget, request.sizes, request.sizes);
  const int64_t n = std::accumulate(request.sizes.begin(), request.sizes.end(), int64_t{0});
  std::vector<int64_t> shares(request.sizes.size(), 0);
  int64_t left = request.budget;
  for (size_t k = 0; k + 1 < shares.size(); ++k) {
    shares[k] = request.budget * request.sizes[k] / n;
    left -= shares[k];
  }
  shares.back() = left;
  pass_excess(request.sizes, shares);
  return shares;
}

struct Fair : Constrain {
  Fair()
      : Constrain({"fair", "budget by size of each segment, ranking inside it",
                   "Pitfalls Algorithm 1", "fair_spans fair_rounding fair_scores", "spans"}) {}
  std::vector<Range> segments(const Settings& settings, const std::vector<Span>& spans,
                              int64_t entries) const override {
    return cut(settings, spans, entries);
  }
  std::vector<int64_t> shares(const Settings& settings,
                              const ShareRequest& request) const override {
    return fair_shares(settings, request);
  }
};

struct Debias : Constrain {
  Debias()
      : Constrain({"debias", "between the unconstrained and the fair division of two segments",
                   "Pitfalls Appendix G", "fair_spans fair_rounding fair_scores debias_lambda",
                   "2 spans", "", "fair_spans=head+tail"}) {}
  bool compares_with_unconstrained(const Settings&) const override { return true; }
  bool keeps_scores(const Settings& settings) const override {
    return settings.real(debias_lambda) == 0 || Constrain::keeps_scores(settings);
  }
  std::vector<Range> segments(const Settings& settings, const std::vector<Span>& spans,
                              int64_t entries) const override {
    auto segments = cut(settings, spans, entries);
    if (segments.size() != 2)
      bad_data({"debias divides a budget over two spans", "constrain=debias",
                std::to_string(segments.size()) + " spans", "exactly 2",
                "name two with fair_spans=A+B"});
    return segments;
  }
  std::vector<int64_t> shares(const Settings& settings,
                              const ShareRequest& request) const override {
    const std::vector<int64_t> equal = fair_shares(settings, request);
    if (request.unconstrained.empty()) return equal;
    const int64_t gap = equal[0] - request.unconstrained[0];
    // b_1 = floor(lambda * fair + (1 - lambda) * default + 1/2), exactly: lambda * gap is doubled.
    const Decimal lambda = settings.decimal(debias_lambda);
    const int64_t twice = gap >= 0 ? lambda.floor_times(2 * gap) : -ceil_times(lambda, -2 * gap);
    int64_t first = request.unconstrained[0] + floor_half(twice + 1);
    first = std::clamp(first, std::max<int64_t>(0, request.budget - request.sizes[1]),
                       std::min(request.budget, request.sizes[0]));
    return {first, request.budget - first};
  }

 private:
  static int64_t ceil_times(const Decimal& x, int64_t count) {
    return count - x.one_minus().floor_times(count);
  }
  static int64_t floor_half(int64_t x) { return x >= 0 ? x / 2 : -((1 - x) / 2); }
};
const RegisterNone<Constrain> none("one segment: the prompt");
const Register<Constrain, Fair, Debias> registered;

}  // namespace kvsim::stages::constrain::constrain
