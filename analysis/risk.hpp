#pragma once
#include <span>
#include <vector>

#include "sim/backend/backend.hpp"

namespace kvsim {

/// True risk of every prompt entry (metrics.md 1; DefensiveKV 3.1): the largest importance that it
/// ever has for a later query of any head that shares it.
class TrueRisk {
 public:
  /// `importance` is [Hq][stride >= n] weights of the entries.
  TrueRisk(int kv_heads, int64_t entries, const float* importance, int64_t stride);
  void add(const AttentionBlock& block, int64_t first_row);
  const Table<double>& risk() const { return risk_; }  ///< [Hkv][n] R*

 private:
  const float* importance_;
  int64_t stride_;
  Table<double> risk_;
};

/// How good an estimate of the risk is, over some entries of one KV head.
struct RiskQuality {
  double spearman = 0;
  double log_ratio_median = 0;  ///< median of ln(estimate / R*); 0 over 0 is left out
  double underestimated = 0;    ///< share of entries with estimate < R*
  double prior_exceeds = 0;     ///< share whose prior exceeds R*; NaN without a prior
};

/// All of equal length; `prior` empty: none. No entries: NaN.
RiskQuality risk_quality(std::span<const double> estimate, std::span<const double> risk,
                         std::span<const double> prior);

}  // namespace kvsim
