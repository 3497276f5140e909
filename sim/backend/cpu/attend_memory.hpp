#pragma once
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "sim/backend/cpu/scratch.hpp"

namespace kvsim {

/// What one thread needs to work on tiles of attention over slots. ld, stride: padded queries of a
/// tile, padded dv.
struct AttendMemory {
  std::vector<int64_t> seen;     ///< [queries] slots that each sees
  std::vector<int32_t> last;     ///< [ld] last slot of the block that a query sees
  std::vector<float> maximum;    ///< [ld] of the block
  std::vector<float> shift;      ///< [ld]
  std::vector<double> mass;      ///< [ld] sum of exp(logit - shift)
  std::vector<double> products;  ///< [slots of a segment], one by one
  Scratch<float> queries;        ///< [d][ld], scaled; [d] one by one
  Scratch<float> scores;         ///< [slots of the block][ld]; [slots] one by one
  Scratch<float> exponentials;   ///< [slots][queries], one by one
  Scratch<float> sums;           ///< [queries][stride]
  Scratch<float> values;         ///< [slots of the block][stride]
};

/// Memory that is kept from call to call: a step of decoding takes less time than to find it anew.
class AttendMemories {
 public:
  std::unique_ptr<AttendMemory> take() {
    const std::lock_guard lock(access_);
    if (free_.empty()) return std::make_unique<AttendMemory>();
    std::unique_ptr<AttendMemory> one = std::move(free_.back());
    free_.pop_back();
    return one;
  }
  void give(std::unique_ptr<AttendMemory> one) {
    const std::lock_guard lock(access_);
    free_.push_back(std::move(one));
  }

 private:
  std::mutex access_;  // calls run side by side
  std::vector<std::unique_ptr<AttendMemory>> free_;
};

}  // namespace kvsim
