#pragma once
#include <memory>
#include <vector>

#include "sim/stages/merge/merge.hpp"

namespace kvsim::test {

using Row = std::vector<float>;

/// Estimates that the test states: log_score[line][slot].
class StatedEstimates : public Estimates {
 public:
  explicit StatedEstimates(std::vector<std::vector<double>> values) : values_(std::move(values)) {}
  std::unique_ptr<Estimates> copy() const override {
    return std::make_unique<StatedEstimates>(*this);
  }
  void see(int, std::span<const double>) override {}
  double log_score(int64_t slot, int line) const override {
    return values_[static_cast<size_t>(line)][static_cast<size_t>(slot)];
  }
  void append() override {}
  void erase(std::span<const int64_t>) override {}
  void restart(int64_t slot, int line, double value) override {
    values_[static_cast<size_t>(line)][static_cast<size_t>(slot)] = value;
  }

 private:
  std::vector<std::vector<double>> values_;
};

/// Slots at positions 0, 1, ... with these keys and values, read by `heads` query heads.
inline SlotCache slots(const std::vector<Row>& keys, const std::vector<Row>& values,
                       int heads = 1) {
  SlotCache cache(0, 0, heads, static_cast<int64_t>(keys[0].size()),
                  static_cast<int64_t>(values[0].size()));
  for (size_t i = 0; i < keys.size(); ++i) {
    const auto slot = static_cast<int64_t>(i);
    cache.append(slot);
    std::ranges::copy(keys[i], cache.key(slot).begin());
    std::ranges::copy(values[i], cache.value(slot).begin());
  }
  return cache;
}

/// One compression of one layer with the merge of that name; evicted slots stay to be looked at.
struct Compression {
  explicit Compression(const char* name) : merge(Kinds<Merge>::find(name)) {
    settings.set("merge_threshold", "0.8");
    settings.set("cam_targets", "2");
    request.settings = &settings;
    request.memory = &memory;
  }
  MergeOwner& add(SlotCache& cache, std::vector<int64_t> evicted) {
    MergeOwner& owner = request.owners.emplace_back();
    owner.cache = &cache;
    owner.evicted = std::move(evicted);
    return owner;
  }
  void run() { merge.apply(request); }

  const Merge& merge;
  Settings settings;
  MergeMemory memory;
  MergeRequest request;
};

inline void merge(const char* name, SlotCache& cache, std::vector<int64_t> evicted) {
  Compression compression(name);
  compression.add(cache, std::move(evicted));
  compression.run();
}

}  // namespace kvsim::test
